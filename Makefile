# Everything that is done with this repository. `make` lists the targets.
#
# PYTHON chooses the interpreter that the virtual environments are made of (3.11 or
# later). pip's own settings apply: where its index has a CPU build of torch, that
# one is smaller.

PYTHON ?= python3
PORT ?= 8000
GRPC_PORT ?= 50050
OUT ?= out
ARGS ?=

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
PROTO_VENV := .venv-proto
PROTO_INSTALLED := $(PROTO_VENV)/.installed

TORCH := torch==2.13.0
# Stubs of this generator import on every protobuf runtime from 5.29 on.
PROTO_TOOLS := grpcio-tools==1.71.2 mypy-protobuf==3.6.0 protobuf==5.29.6 buf-bin==1.75.0

export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo up load test check format proto proto-check clean distclean bench-transport

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## make .venv with everything in it (again when pyproject.toml changes)

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install "$(TORCH)"
	$(BIN)/python -m pip install --editable ".[stage,gateway]" --group dev
	touch $@

demo: setup ## start everything, hear it talk, talk with it; files in OUT (out); [MODEL=DIR]
	$(BIN)/python -m antiphon.demo --out "$(OUT)" $(if $(MODEL),--model "$(MODEL)") $(ARGS)

up: setup ## serve a checkpoint on this machine: [MODEL=DIR] [PORT=8000] [GRPC_PORT=50050]
	$(BIN)/python -m antiphon.deployment up $(if $(MODEL),--model "$(MODEL)") \
		--port "$(PORT)" --grpc-port "$(GRPC_PORT)" $(ARGS)

load: setup ## load one service: SERVICE=thinker|talker|code2wav|gateway [MODEL= RATE= SESSIONS= SECONDS=]
	@test -n "$(SERVICE)" || { echo "make load: say what, SERVICE=gateway" >&2; exit 2; }
	$(BIN)/python -m antiphon.load "$(SERVICE)" $(if $(MODEL),--model "$(MODEL)") \
		$(if $(RATE),--rate "$(RATE)") $(if $(SESSIONS),--sessions "$(SESSIONS)") \
		$(if $(SECONDS),--seconds "$(SECONDS)") \
		--json "$(OUT)/load-$(SERVICE).json" --html "$(OUT)/load-$(SERVICE).html" $(ARGS)

test: setup ## run the tests; ARGS go to pytest
	$(BIN)/python -m pytest $(ARGS)

check: setup proto-check ## format, lint, types, import contracts, generated code
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench-transport: setup ## measure the ways from process to process; OMNI=DIR: vllm-omni 0.30's wheel, unpacked
	$(BIN)/python -m benchmarks.transport $(if $(OMNI),--omni "$(OMNI)") $(ARGS)

format: setup ## format the code and fix what lint can fix
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
proto-check: $(PROTO_INSTALLED) ## lint proto/; fail if antiphon/v1 is not what it generates
	cd proto && ../$(PROTO_VENV)/bin/buf lint
	PYTHONPATH=. $(PROTO_VENV)/bin/python -c "$(IMPORT_STUBS)"
	@fresh=$$(mktemp -d) && trap 'rm -rf "$$fresh"' EXIT && $(call protoc,"$$fresh") && \
	diff -rq --exclude=__init__.py --exclude=__pycache__ "$$fresh/antiphon/v1" antiphon/v1 || \
	{ echo "antiphon/v1 differs from proto/: run make proto" >&2; exit 1; }

$(PROTO_INSTALLED): Makefile
	test -x $(PROTO_VENV)/bin/python || $(PYTHON) -m venv $(PROTO_VENV)
	$(PROTO_VENV)/bin/python -m pip install --quiet $(PROTO_TOOLS)
	touch $@

clean: ## remove caches and outputs
	rm -rf out build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache
	find . -name __pycache__ -not -path "./.venv*" -prune -exec rm -rf {} +

distclean: clean ## remove the virtual environments too
	rm -rf $(VENV) $(PROTO_VENV)
