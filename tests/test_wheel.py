"""What `pip install antiphon` brings: the client, the wire and values, and nothing else."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
INSTALLED = {"antiphon", "antiphon.client", "antiphon.v1", "antiphon.wire"}
DEPENDENCIES = {"grpcio": "grpc", "protobuf": "google"}
"""What is installed with the client, and the name that it is imported by."""
WIRE_EXTRA = {"ml_dtypes": "ml_dtypes", "msgspec": "msgspec", "numpy": "numpy"}
"""The same of the extra `wire`, for those who use chunks with tensors."""
TYPES = "_typeshed"
"""Imported where types are checked, never when a program runs."""
BUILD = """
import sys
from hatchling import build
build.build_wheel(sys.argv[1])
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


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, unpacked. Building writes into the sources: into a copy."""
    sources = tmp_path_factory.mktemp("sources")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, sources)
    for package in ("antiphon", "gateway", "services", "testkit", "tools"):
        shutil.copytree(ROOT / package, sources / package)
    packed = tmp_path_factory.mktemp("packed")
    built = subprocess.run(
        [sys.executable, "-c", BUILD, str(packed)],
        cwd=sources,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    unpacked = tmp_path_factory.mktemp("unpacked")
    (archive,) = packed.glob("*.whl")
    with zipfile.ZipFile(archive) as files:
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
