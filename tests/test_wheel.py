"""What `pip install antiphon` brings: the client, the wire and values, and nothing else; and what
`antiphon-server` adds to it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement

from tests.without_linux import FOLDER as WITHOUT_LINUX

ROOT = Path(__file__).parents[1]
INSTALLED = {"antiphon", "antiphon.client", "antiphon.v1", "antiphon.values", "antiphon.wire"}
DEPENDENCIES = {"grpcio": "grpc", "protobuf": "google"}
"""What is installed with the client, and the name that it is imported by."""
WIRE_EXTRA = {"ml_dtypes": "ml_dtypes", "msgspec": "msgspec", "numpy": "numpy"}
"""The same of the extra `wire`, for those who use chunks with tensors."""
TYPES = "_typeshed"
"""Imported where types are checked, never when a program runs."""
BUILD = """
import sys
from hatchling import build
print(build.build_wheel(sys.argv[1]))
"""
IMPORT = """
import sys
import grpc.aio, google.protobuf.message
before = set(sys.modules)
import antiphon
for name in antiphon.__all__:
    getattr(antiphon, name)
print(antiphon.__file__)
print(antiphon.__version__)
print(*sorted({each.partition(".")[0] for each in set(sys.modules) - before}))
"""


def _build(sources: Path, packed: Path) -> Path:
    """The wheel of the project in that directory."""
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(packed)],
        cwd=sources,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    return packed / built.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def client_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout. Building writes into the sources: into a copy."""
    sources = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, sources)
    for package in ("antiphon", "gateway", "services", "testkit", "tools"):
        shutil.copytree(ROOT / package, sources / package)
    return _build(sources, tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def wheel(client_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, unpacked."""
    unpacked = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(client_wheel) as files:
        files.extractall(unpacked)
    return unpacked


def test_wheel_says_that_it_is_typed_and_has_the_stubs(wheel: Path) -> None:
    assert (wheel / "antiphon" / "py.typed").is_file()
    stubs = {path.name for path in (wheel / "antiphon" / "v1").glob("*.pyi")}
    assert stubs == {path.name for path in (ROOT / "antiphon" / "v1").glob("*.pyi")}


def _modules(root: Path) -> dict[str, Path]:
    """The files under a directory by the name that they are imported by."""
    found = {}
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _imported(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            names.add(node.module or "")
    return names


def _missing(root: Path) -> set[str]:
    """What files import and neither the directory nor a dependency has."""
    modules = _modules(root)
    others = sys.stdlib_module_names | {*DEPENDENCIES.values(), *WIRE_EXTRA.values(), TYPES}
    return {
        f"{module} imports {name}"
        for module, path in modules.items()
        for name in _imported(path)
        if name not in modules and name.partition(".")[0] not in others
    }


def _requirements(root: Path, extra: str = "") -> set[str]:
    """Names of what the metadata ask for, of an extra or of all."""
    (metadata,) = root.glob("*.dist-info/METADATA")
    asked = Parser().parsestr(metadata.read_text()).get_all("Requires-Dist", [])
    wanted = map(Requirement, asked)
    if extra:
        named = [each for each in wanted if each.marker and each.marker.evaluate({"extra": extra})]
    else:
        named = [each for each in wanted if each.marker is None]
    return {each.name.replace("-", "_") for each in named}


def test_wheel_has_the_client_the_wire_and_values(wheel: Path) -> None:
    modules = _modules(wheel)
    packages = {name for name, path in modules.items() if path.name == "__init__.py"}
    assert packages == INSTALLED
    (metadata,) = wheel.glob("*.dist-info")
    assert {path.name for path in wheel.iterdir()} == {"antiphon", metadata.name}


def test_wheel_adds_nothing_to_other_programs(wheel: Path) -> None:
    """No command, no plug-in of vLLM or of anything else."""
    assert not list(wheel.glob("*.dist-info/entry_points.txt"))
    assert not list(wheel.rglob("*.pth"))


def test_wheel_asks_for_grpc_and_protobuf_alone(wheel: Path) -> None:
    assert _requirements(wheel) == set(DEPENDENCIES)
    assert _requirements(wheel, "wire") == set(WIRE_EXTRA)


def test_wheel_imports_only_what_is_in_it_or_in_its_dependencies(wheel: Path) -> None:
    assert not _missing(wheel)


def test_imports_of_what_is_not_there_are_reported(wheel: Path, tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    shutil.copytree(wheel, planted)
    lines = "def late():\n    import torch\n    from antiphon.runtime import engine\n"
    (planted / "antiphon" / "wire" / "planted.py").write_text(lines)
    name = "antiphon.wire.planted"
    assert _missing(planted) == {f"{name} imports torch", f"{name} imports antiphon.runtime"}


def test_installed_client_loads_nothing_but_itself_grpc_and_protobuf(
    wheel: Path, tmp_path: Path
) -> None:
    """No numpy, no torch: this, and not the client, decides how long an import takes."""
    version = next(wheel.glob("*.dist-info")).name.split("-")[1].removesuffix(".dist")
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(wheel)},
        capture_output=True,
        text=True,
        check=True,
    )
    place, said, loaded = ran.stdout.splitlines()
    assert Path(place).is_relative_to(wheel)
    assert said == version
    others = set(loaded.split()) - sys.stdlib_module_names
    assert {"antiphon"} <= others <= {"antiphon", *DEPENDENCIES.values()}


SERVER = ROOT / "packaging" / "server"


@pytest.fixture(scope="module")
def server_wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The server's wheel, packed."""
    return _build(SERVER, tmp_path_factory.mktemp("packed"))


@pytest.fixture(scope="module")
def installed(
    wheel: Path, server_wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """An environment with both wheels, and with what they depend on from this one: its packages
    are on the path, its editable antiphon is not, as no `.pth` file of theirs is read."""
    place = tmp_path_factory.mktemp("installed")
    venv.create(place, with_pip=False)
    (packages,) = place.glob("lib/python*/site-packages")
    shutil.copytree(wheel, packages, dirs_exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--python", str(place / "bin" / "python"), "install"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", str(server_wheel)], check=True)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    yield place
    shutil.rmtree(place)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def test_both_distributions_have_every_module_of_the_library_once(
    wheel: Path, server_wheel: Path
) -> None:
    with zipfile.ZipFile(server_wheel) as files:
        server = {name for name in files.namelist() if name.startswith("antiphon/")}
    client = {str(path.relative_to(wheel)) for path in (wheel / "antiphon").rglob("*.py*")}
    assert not client & server
    sources = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "antiphon").rglob("*.py")
        if "__pycache__" not in path.parts
    }
    assert sources == {name for name in client | server if name.endswith(".py")}


def test_both_distributions_have_one_version() -> None:
    projects = [
        tomllib.loads((place / "pyproject.toml").read_text())["project"] for place in (ROOT, SERVER)
    ]
    client, server = projects
    assert client["version"] == server["version"]
    for requirements in (server["dependencies"], *server["optional-dependencies"].values()):
        (only,) = map(Requirement, requirements)
        assert only.name == "antiphon"
        assert only.extras <= set(client["optional-dependencies"])
        assert str(only.specifier) == f"=={client['version']}"
    (serve,) = map(Requirement, client["optional-dependencies"]["serve"])
    assert (serve.name, str(serve.specifier)) == ("antiphon-server", f"=={client['version']}")


def test_wheels_of_a_commit_are_equal_wherever_and_whenever_they_are_built(
    client_wheel: Path, server_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others come from a copy of the tracked files, all of them from another day."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "antiphon", "gateway", "models", "packaging", "services",
         "testkit", "tools", "pyproject.toml", "README.md"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        (tmp_path / "copy" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / "copy" / name)
        os.utime(tmp_path / "copy" / name, (1e9, 1e9))
    (tmp_path / "out").mkdir()
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    for first, project in ((client_wheel, "."), (server_wheel, "packaging/server")):
        second = _build(tmp_path / "copy" / project, tmp_path / "out")
        assert second.name == first.name
        assert second.read_bytes() == first.read_bytes()


def test_client_wheel_is_small(client_wheel: Path) -> None:
    assert client_wheel.stat().st_size <= 200 << 10


def test_server_wheel_takes_no_name_that_is_not_its_own(server_wheel: Path) -> None:
    with zipfile.ZipFile(server_wheel) as files:
        names = {name.partition("/")[0] for name in files.namelist()}
    assert all(name.startswith("antiphon") for name in names), names


def test_installed_commands_say_what_they_take(installed: Path, tmp_path: Path) -> None:
    listed = subprocess.run(
        [installed / "bin" / "antiphon"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    commands = [line.split()[0] for line in listed.splitlines() if line.startswith("  ")]
    assert commands[:3] == ["serve", "stage", "gateway"]
    for command in commands:
        said = subprocess.run(
            [installed / "bin" / "antiphon", command, "--help"],
            cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert said.startswith(f"usage: antiphon {command} "), said
    unknown = subprocess.run(
        [installed / "bin" / "antiphon", "speak"],
        cwd=tmp_path, env=_environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert unknown.returncode == 2
    assert unknown.stderr.startswith("antiphon: unknown command 'speak'")


@pytest.mark.processes
def test_installed_server_speaks_in_a_directory_that_shadows_its_packages(
    installed: Path, tmp_path: Path
) -> None:
    """It serves the model that comes with it; the user's folders do not stand in for packages."""
    for name in ("antiphon", "antiphon_gateway", "gateway", "services"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('the wrong package')\n")
    command = [installed / "bin" / "antiphon", "serve", "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(
        [*command, "--on-exit", "stop"],
        cwd=tmp_path,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as serving:
        assert serving.stdout is not None
        try:
            said = ""
            for line in serving.stdout:
                said += line
                if line.startswith("  HTTP  "):
                    break
            assert "  HTTP  " in said, said
            url = line.split()[1]
            question = {"role": "user", "content": "What is antiphon?"}
            answer = httpx.post(
                f"{url}/v1/chat/completions",
                json={
                    "model": "antiphon-demo",
                    "modalities": ["text", "audio"],
                    "audio": {"voice": "cantor", "format": "wav"},
                    "messages": [question],
                },
                timeout=240,
            )
        finally:
            serving.terminate()
            rest = serving.stdout.read()
        assert answer.status_code == 200, answer.text
        audio = json.loads(answer.text)["choices"][0]["message"]["audio"]
        assert audio["transcript"]
        assert len(audio["data"]) > 10_000
        assert "all processes have been stopped" in rest
        assert serving.wait() == 0


@pytest.mark.processes
def test_demo_speaks_and_hears_on_a_system_without_what_only_linux_has(
    installed: Path, tmp_path: Path
) -> None:
    """Every process of the environment loses it, those that decode recordings too."""
    (packages,) = installed.glob("lib/python*/site-packages")
    removal = packages / "sitecustomize.py"
    shutil.copy(WITHOUT_LINUX / removal.name, removal)
    try:
        ran = subprocess.run(
            [installed / "bin" / "antiphon", "demo", "--out", str(tmp_path / "out")],
            cwd=tmp_path,
            env=_environment() | {"TMPDIR": str(tmp_path)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
    finally:
        removal.unlink()
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not ran.stderr
    assert "transcribed: What are the stages?\ncantor    There are three stages" in (
        ran.stdout.replace("\n          ", "\n").replace("          transcribed", "transcribed")
    )
    assert ran.stdout.count("exited with status 0") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
