"""The repository keeps its shape: imports, sizes, names, versions and generated code agree."""

from __future__ import annotations

import ast
import configparser
import itertools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from fnmatch import fnmatch
from pathlib import Path

import pytest
import yaml

from antiphon.pipelines.graph import CLIENT
from antiphon.pipelines.registry import own_pipelines
from antiphon_tools.launcher.plan import IMPORT_ROOTS, import_path

ROOT = Path(__file__).parents[1]
SHARED_FIXTURE = "fixture(scope=" + '"package"'
PACKAGES = ("antiphon", "gateway", "services", "testkit", "tools")
GENERATED = ROOT / "antiphon" / "v1"
PROTOS = sorted((ROOT / "proto").rglob("*.proto"))
SOURCES = {".py", ".proto", ".yaml", ".tpl", ".txt"}
SHARED = (
    "antiphon",
    "Makefile",
    "gateway",
    "gateway/Dockerfile",
    "helm/antiphon/templates",
    "helm/antiphon/values.yaml",
    "proto",
    "pyproject.toml",
    "services/antiphon_services/*.py",
    "services/Dockerfile",
    "services/antiphon_services/clips",
    "services/antiphon_services/diffusion",
    "services/antiphon_services/emova",
    "services/antiphon_services/flow",
    "services/antiphon_services/lm",
    "services/antiphon_services/magvit",
    "services/antiphon_services/stage",
    "services/antiphon_services/text",
    "services/antiphon_services/vllm",
    "services/antiphon_services/vocoder",
    "tools/antiphon_tools/chart",
    "tools/antiphon_tools/demo",
    "tools/antiphon_tools/launcher",
    "tools/antiphon_tools/load",
    "tools/antiphon_tools/vllm_cpu",
)
"""Where no family and no stage may be named; what is a family's own within is left out."""
SHARED_NAMES = {
    # The two ends of a link, a value with its form on the wire, tables by name, and a stage as its
    # client and its server have it.
    "antiphon": {
        *("agreement", "carriers", "connection", "link", "links"),
        *("conversation", "history", "logprobs", "options"),
        *("registry", "stage"),
    },
    # The parts of an endpoint, and what a conversation has inside and at its endpoints.
    "gateway": {
        *("answer", "endpoint", "request", "schema"),
        *("errors", "events", "items", "settings"),
    },
    # The parts of a stage, which each family and each engine has.
    "services": {
        *("architectures", "audio", "blocks", "checkpoint", "decoder", "engine", "fields", "flow"),
        *("front_end", "generation", "kernels", "layer", "load", "loading", "model", "module"),
        *("modules", "prompt", "reference", "rows", "talker", "tokenizer", "towers", "vocoder"),
        *("voice_options", "voices", "warm_up"),
    },
    # The parts of a tiny checkpoint, which each family has.
    "testkit": {
        *("margins", "reference", "tensor_shapes", "tiny_checkpoint", "tiny_config", "tiny_shape"),
        *("tiny_tokenizer", "tiny_weights"),
    },
    # The parts of a tool.
    "tools": {
        *("command_line", "fleet", "launcher", "measured", "plan", "report", "selection", "served"),
    },
}
"""Names that several modules of a package have, as they stand for one idea in several places."""
NAMES_WITHOUT_MEANING = {
    "base", "common", "core", "data", "handler", "handlers", "helper", "helpers",
    "info", "manager", "managers", "mixin", "mixins", "util", "utils",
}  # fmt: skip


def _sources() -> Iterator[Path]:
    """Every Python file that people write, tests and benchmarks included."""
    for folder in (*PACKAGES, "tests", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if GENERATED not in path.parents:
                yield path


def _lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Check the import contracts of the packages under `root`."""
    run = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    return subprocess.run(
        [sys.executable, "-c", run, "--no-cache", "--no-logo"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": import_path(root)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_keep_all_contracts() -> None:
    checked = _lint_imports(ROOT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.fixture(scope="module")
def copy_of_packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("planted")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, root / package)
    shutil.copy(ROOT / ".importlinter", root)
    return root


def test_contracts_report_planted_imports(copy_of_packages: Path) -> None:
    planted = {
        "services/antiphon_services/qwen3_omni/talker/planted.py": (
            "import antiphon_services.qwen3_omni.thinker\nimport antiphon.client"
        ),
        "services/antiphon_services/lm/planted.py": (
            "import antiphon_services.qwen3_omni\nimport antiphon.pipelines"
        ),
        "gateway/antiphon_gateway/planted.py": "import torch\nimport opentelemetry",
        "gateway/antiphon_gateway/calls/planted.py": "import antiphon_gateway.endpoints",
        "gateway/antiphon_gateway/endpoints/openai/read_aloud/planted.py": (
            "import antiphon_gateway.endpoints.openai.chat.schema"
        ),
        "gateway/antiphon_gateway/endpoints/http/planted.py": (
            "import antiphon_gateway.endpoints.openai"
        ),
        "gateway/antiphon_gateway/sessions/stage_stream.py": (
            "import antiphon_gateway.sessions.session"
        ),
        "gateway/antiphon_gateway/fleet/planted.py": (
            "import antiphon_gateway.calls\nimport kubernetes"
        ),
        "antiphon/client/planted.py": "import numpy",
        "antiphon/wire/planted.py": "import antiphon.pipelines",
        "antiphon/runtime/session/states.py": "import asyncio",
        "antiphon/errors.py": "import grpc",
        "antiphon/transport/planted.py": "import antiphon.runtime",
        "tools/antiphon_tools/load/planted.py": "import antiphon_services.stage.loading",
    }
    for path, lines in planted.items():
        with (copy_of_packages / path).open("a") as file:
            file.write(f"\n{lines}\n")
    checked = _lint_imports(copy_of_packages)
    assert checked.returncode == 1, checked.stderr
    broken = set(re.findall(r"^(.+) BROKEN", checked.stdout, re.MULTILINE))
    kept = set(re.findall(r"^(.+) KEPT", checked.stdout, re.MULTILINE))
    assert not kept
    assert len(broken) == len(_contracts())
    for path in planted:
        parts = Path(path).with_suffix("").parts
        module = ".".join(parts[parts[0] in IMPORT_ROOTS :])
        # A circle is reported by its package and the names in it.
        circle = f"- .{parts[-1]} -> "
        assert module in checked.stdout or circle in checked.stdout, module


def _contracts() -> list[configparser.SectionProxy]:
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    return [contracts[name] for name in contracts.sections() if ":contract:" in name]


def _contract(name: str) -> configparser.SectionProxy:
    return next(each for each in _contracts() if each.name.endswith(f":{name}"))


def _family_words() -> tuple[set[str], set[str], set[str]]:
    """Names of families without their marks, of their stages, and of edges between these."""
    pipelines = own_pipelines().values()
    edges = {
        edge.name
        for each in pipelines
        for edge in each.edges
        if CLIENT not in (edge.producer, *edge.consumers)
    }
    roles = {role for each in pipelines for role in each.roles}
    return {_plain(each.name) for each in pipelines}, roles, edges


def _plain(name: str) -> str:
    """A name without the marks and capitals that tell its spellings apart."""
    return re.sub(r"[-_.]", "", name).lower()


def _families_named_in(root: Path, place: str) -> dict[str, set[str]]:
    """What the files of a shared place name of a family: by file, from `root` on.

    A family in any spelling, a role as a word or as part of an identifier, and an edge between
    stages as a whole string.
    """
    families, roles, edges = _family_words()
    found = {}
    for path in _files_of(root, place):
        source = path.read_text()
        plain = _plain(source)
        parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+", source)
        words = {each.lower() for each in parts}
        words |= {(a + b).lower() for a, b in itertools.pairwise(parts)}
        named = {each for each in families if each in plain}
        named |= {each for each in roles if words & {each, f"{each}s", _plain(each)}}
        if path.suffix == ".py":
            nodes = ast.walk(ast.parse(source))
            strings = (each.value for each in nodes if isinstance(each, ast.Constant))
            named |= edges.intersection(each for each in strings if isinstance(each, str))
        if named:
            found[path.relative_to(root).as_posix()] = named
    return found


def _files_of(root: Path, place: str) -> Iterator[Path]:
    """Sources of a folder, or those that a pattern names, without what is a family's own."""
    own = {f"antiphon/pipelines/{name}.py" for name in own_pipelines()}
    for path in root.glob(place):
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            name = file.relative_to(root).as_posix()
            if (
                (file == path or file.suffix in SOURCES)
                and name not in own
                and not name.startswith("antiphon/v1/")
                and not re.match(r"testkit/antiphon_testkit/\w+/", name)
            ):
                yield file


@pytest.mark.parametrize("place", SHARED)
def test_what_families_share_knows_no_family_and_no_stage_by_name(place: str) -> None:
    assert list(_files_of(ROOT, place))
    assert not _families_named_in(ROOT, place)


@pytest.mark.parametrize("place", SHARED)
def test_names_of_families_are_found_where_they_are_planted(tmp_path: Path, place: str) -> None:
    planted = {
        "constant.py": ('TALKER = ""', {"talker"}),
        "comment.py": ("# As the thinker's text.", {"thinker"}),
        "class.py": ("class FakeTalker: ...", {"talker"}),
        "identifier.py": ("def code2wav_of(thinkers): ...", {"code2wav", "thinker"}),
        "spelling.py": ("import Code2Wav", {"code2wav"}),
        "edge.py": ('frames = tensors["codes"]', {"codes"}),
        "family.py": ("import antiphon.pipelines.qwen3_omni", {"qwen3omni"}),
        "configuration.py": ("from transformers import Qwen3OmniMoeConfig", {"qwen3omni"}),
        "title.py": ("# As Qwen3-Omni does it.", {"qwen3omni"}),
        "contract.proto": ("// Of the talker only.", {"talker"}),
        "values.yaml": ("stages: {talker: {}}", {"talker"}),
        "helpers.tpl": ('{{- if eq $role "thinker" }}', {"thinker"}),
        "Makefile": ("ENGINES := thinker", {"thinker"}),
        "Dockerfile": ("# The talker's.", {"talker"}),
        "pyproject.toml": ("# What the talker needs.", {"talker"}),
        "harmless.py": ("message.codes = text or audio  # stalkers of code", set()),
    }
    is_folder = (ROOT / place).is_dir()
    folder = tmp_path / (place if is_folder else Path(place).parent)
    folder.mkdir(parents=True, exist_ok=True)
    planted = {
        name: each
        for name, each in planted.items()
        if (Path(name).suffix in SOURCES if is_folder else fnmatch(name, Path(place).name))
    }
    assert planted
    for name, (source, _) in planted.items():
        (folder / name).write_text(source)
    found = {Path(name).name: named for name, named in _families_named_in(tmp_path, place).items()}
    assert found == {name: named for name, (_, named) in planted.items() if named}


def test_every_package_of_services_is_a_familys_or_names_none() -> None:
    families, roles, _ = _family_words()
    for folder in sorted((ROOT / "services/antiphon_services").glob("*/__init__.py")):
        name = folder.parent.name
        if name in own_pipelines() or f"services/antiphon_services/{name}" in SHARED:
            continue
        # What the stages of one role share may name roles.
        assert name in roles
        named = _families_named_in(ROOT, f"services/antiphon_services/{name}")
        assert not {file: words & families for file, words in named.items() if words & families}


def test_every_familys_stages_are_kept_apart_from_each_other() -> None:
    stages = _contract("stages")["modules"]
    families = {
        path.parent.parent.name
        for path in (ROOT / "services/antiphon_services").glob("*/*/load.py")
    }
    assert families == set(own_pipelines())
    assert set(stages.split()) == {f"antiphon_services.{name}.*" for name in families}


def test_every_stage_of_a_pipeline_has_a_folder() -> None:
    for pipeline in own_pipelines().values():
        assert pipeline.package == f"antiphon_services.{pipeline.name}"
        folder = ROOT / "services/antiphon_services" / pipeline.name
        assert {each.parent.name for each in folder.glob("*/load.py")} == set(pipeline.roles)


def test_every_module_has_a_layer() -> None:
    layers = _contract("layers")["layers"]
    placed = set(re.findall(r"[\w.]+", layers))
    modules = {
        f"antiphon.{path.stem}"
        for path in (ROOT / "antiphon").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").is_file()) and path.stem != "__init__"
    }
    tools = {
        f"antiphon_tools.{path.parent.name}"
        for path in (ROOT / "tools/antiphon_tools").glob("*/__init__.py")
    }
    assert placed == modules | tools | {"antiphon_gateway", "antiphon_services", "antiphon_testkit"}


def _modules_of_tests() -> Iterator[Path]:
    """Files that tests import as `tests...`; families are distributions of their own, and the sound
    card takes the place of packages.
    """
    for path in (ROOT / "tests").rglob("*.py"):
        if not {"families", "echo_family", "sound_card"} & set(path.parts):
            yield path


def _short_imports(sources: Mapping[str, str], names: set[str]) -> list[str]:
    """Places where a source imports one of these modules by its name alone."""
    found = []
    for place, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                imported = [node.module or ""]
            elif isinstance(node, ast.Import):
                imported = [each.name for each in node.names]
            else:
                continue
            found += [f"{place}: import tests...{each}" for each in imported if each in names]
    return found


def test_tests_import_each_other_by_their_full_names() -> None:
    """pytest adds no folder of tests to the import path."""
    paths = list(_modules_of_tests())
    names = {path.stem for path in paths}
    sources = {str(path.relative_to(ROOT)): path.read_text() for path in paths}
    assert not _short_imports(sources, names)
    planted = {"a.py": "from truth import Truth", "b.py": "def load():\n    import asking as a"}
    assert len(_short_imports(planted, names)) == 2
    assert not _short_imports({"a.py": "from tests.equality.truth import Truth"}, names)


def test_no_test_imports_from_a_conftest() -> None:
    """There are several of that name; which one it is depends on what pytest loaded last."""
    paths = (ROOT / "tests").rglob("*.py")
    importing = re.compile(r"^\s*(from|import) (tests\.(\w+\.)*)?conftest\b", re.MULTILINE)
    assert not [str(each.relative_to(ROOT)) for each in paths if importing.search(each.read_text())]


def test_names_of_modules_say_what_is_inside() -> None:
    paths = [path.relative_to(ROOT) for path in _sources()]
    assert not [
        str(path)
        for path in paths
        if NAMES_WITHOUT_MEANING & {path.stem.removeprefix("_"), *path.parts[:-1]}
    ]


def _repeated_names(root: Path, package: str) -> set[str]:
    """Names that two or more modules of a package have."""
    generated = root / GENERATED.relative_to(ROOT)
    names = Counter(
        path.stem for path in (root / package).rglob("*.py") if generated not in path.parents
    )
    return {name for name, count in names.items() if count > 1 and not name.startswith("__")}


@pytest.mark.parametrize("package", PACKAGES)
def test_modules_of_one_name_stand_for_one_idea(tmp_path: Path, package: str) -> None:
    """A stack trace or an open file is then known by its name."""
    assert _repeated_names(ROOT, package) == SHARED_NAMES[package]
    for folder in ("one", "other"):
        (tmp_path / package / folder).mkdir(parents=True)
        (tmp_path / package / folder / "segment.py").touch()
    assert _repeated_names(tmp_path, package) == {"segment"}


def _classes(root: Path) -> dict[str, list[str]]:
    """Where each class of the packages is defined, by name."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if "v1" not in path.parts:
                for node in ast.parse(path.read_text()).body:
                    if isinstance(node, ast.ClassDef):
                        found.setdefault(node.name, []).append(path.relative_to(root).as_posix())
    return found


def test_names_of_classes_are_unique(tmp_path: Path) -> None:
    assert not {name: paths for name, paths in _classes(ROOT).items() if len(paths) > 1}
    for name in ("one", "other"):
        (tmp_path / "gateway" / name).mkdir(parents=True)
        (tmp_path / "gateway" / name / "planted.py").write_text("class Planted: ...")
    assert len(_classes(tmp_path)["Planted"]) == 2


def test_chart_installs_the_version_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((ROOT / "helm" / "antiphon" / "Chart.yaml").read_text())
    assert chart["appVersion"] == project["version"]
    # The chart's own version is the same one, as semantic versioning writes it.
    assert chart["version"] == re.sub(r"\.(dev|rc)(\d+)$", r"-\1.\2", project["version"])


def test_there_are_protos() -> None:
    assert PROTOS


@pytest.mark.parametrize("proto", PROTOS, ids=lambda path: path.stem)
def test_proto_path_is_package_and_python_path(proto: Path) -> None:
    place = proto.relative_to(ROOT / "proto")
    package = ".".join(place.parent.parts)
    assert f"\npackage {package};\n" in proto.read_text()
    for suffix in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py", "_pb2_grpc.pyi"):
        assert (ROOT / place.with_name(place.stem + suffix)).is_file()
    generated = (ROOT / place.with_name(f"{place.stem}_pb2.py")).read_text()
    assert f"\n# source: {place}\n" in generated


def test_every_generated_file_has_a_proto() -> None:
    stems = {re.sub(r"_pb2(_grpc)?$", "", path.stem) for path in GENERATED.glob("*_pb2*.py*")}
    assert stems == {path.stem for path in PROTOS}


def test_generated_code_runs_on_the_oldest_protobuf_and_grpc_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    oldest = dict(each.split(">=") for each in project["dependencies"] if each.count(">=") == 1)
    assert oldest["protobuf"].startswith("5.29.")
    for path in GENERATED.glob("*_pb2.py"):
        assert "\n# Protobuf Python Version: 5.29.0\n" in path.read_text(), path.name
    for path in GENERATED.glob("*_pb2_grpc.py"):
        assert f"GRPC_GENERATED_VERSION = '{oldest['grpcio']}'" in path.read_text(), path.name


# Attributes of the project's own objects whose names begin with an underscore and that tests use.
# It only goes down: an object that a test must see into has a public property or a parameter.
MOST_PRIVATE_REACHES = 22


def _private_reaches(source: str) -> list[str]:
    """Uses of private attributes other than a class's own and other distributions'."""
    tree = ast.parse(source)
    ours = ("antiphon", "tests", "benchmarks", "models")
    foreign: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            others = (each for each in node.names if not each.name.startswith(ours))
            foreign |= {(each.asname or each.name).split(".")[0] for each in others}
        elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith(ours):
            foreign |= {each.asname or each.name for each in node.names}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and re.match("_[^_]", node.attr):
            owner: ast.expr = node.value
            is_own = isinstance(owner, ast.Name) and owner.id in ("self", "cls")
            while isinstance(owner, ast.Attribute | ast.Subscript | ast.Call):
                owner = owner.func if isinstance(owner, ast.Call) else owner.value
            if not is_own and not (isinstance(owner, ast.Name) and owner.id in foreign):
                found.append(ast.unparse(node))
    return found


def test_tests_reach_into_no_more_private_attributes() -> None:
    found = [each for path in _modules_of_tests() for each in _private_reaches(path.read_text())]
    assert len(found) <= MOST_PRIVATE_REACHES, sorted(found)
    planted = "import torch\ntorch._dynamo\nself._own\nself.engine._model\nserved()._http[0]._x"
    assert sorted(_private_reaches(planted)) == [
        "self.engine._model",
        "served()._http",
        "served()._http[0]._x",
    ]


def test_fixtures_of_a_package_end_with_it() -> None:
    """pytest keeps those of a folder without `__init__.py` for the whole run: services of all
    families at a time took 20 GB."""
    folders = {
        path.parent for path in (ROOT / "tests").rglob("*.py") if SHARED_FIXTURE in path.read_text()
    }
    assert folders
    assert [each for each in sorted(folders) if not (each / "__init__.py").exists()] == []
