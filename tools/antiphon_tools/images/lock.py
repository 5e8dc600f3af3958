"""`python -m antiphon_tools.images.lock`: resolve the packages of the images again, with hashes.

`uv` resolves the requirements of `pyproject.toml` to the newest compatible versions, as wheels for
the Python and the platform of the images. The extras of an image are resolved together with it, so
that each of them is compatible. The additional packages of an extra are in a separate file, as few
images have them. The build of the images installs only these versions, and only files with these
hashes.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon_tools.images.commands import IMAGES, INSTALLED, OPTIONAL, ROOT, lock_file

PYTHON = "3.11"
# glibc 2.31 or newer, as in every Debian since 11.
PLATFORM = "x86_64-manylinux_2_31"
# The index that has all else has torch for CUDA alone.
CPU_IMAGE = "stage-cpu"
CPU_TORCH = "torch==2.13.0+cpu"
HEAD = f"""\
# Made by `make lock` from pyproject.toml, for CPython {PYTHON} on x86-64 Linux: wheels alone.
"""


@dataclass(frozen=True)
class Locked:
    """A package at one version; the hashes of its files, each `sha256:...`."""

    version: str
    hashes: tuple[str, ...]


Packages = dict[str, Locked]


def main() -> int:
    """Write every lock file, or those of the images that are named."""
    parser = argparse.ArgumentParser(prog="lock", description="Chooses the images' packages.")
    parser.add_argument("images", nargs="*", metavar="IMAGE", help=f"of {' '.join(IMAGES)}")
    parser.add_argument(
        "--torch-index-url", help=f"package index, or folder, with {CPU_TORCH}, for {CPU_IMAGE}"
    )
    asked = parser.parse_args()
    for image in asked.images or IMAGES:
        where = asked.torch_index_url if image == CPU_IMAGE else ""
        if image == CPU_IMAGE and not where:
            print(f"lock: {CPU_IMAGE} needs --torch-index-url", file=sys.stderr)
            return 2
        every = resolved((*INSTALLED[image], *OPTIONAL[image]), {}, where)
        own = resolved(INSTALLED[image], every, where)
        _write(lock_file(image), own)
        for extra in OPTIONAL[image]:
            more = resolved((*INSTALLED[image], extra), every, where)
            _write(lock_file(image, extra), {n: p for n, p in more.items() if n not in own})
        print(f"{image}: {len(own)} packages", flush=True)
    return 0


def resolved(extras: Iterable[str], versions: Mapping[str, Locked], cpu_torch_at: str) -> Packages:
    """Return the requirements of these extras of `pyproject.toml`, and of the build.

    Versions are pinned if they are given; torch is the CPU build if its index is given. Raises
    `subprocess.CalledProcessError`.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = list(project["build-system"]["requires"])
    if cpu_torch_at:
        wanted.append(CPU_TORCH)
    with tempfile.TemporaryDirectory() as directory:
        inputs, constraints, made = (
            Path(directory) / name for name in ("wanted.in", "versions.txt", "pylock.toml")
        )
        inputs.write_text("\n".join(wanted))
        constraints.write_text("\n".join(f"{n}=={p.version}" for n, p in versions.items()))
        command = [
            *("uv", "pip", "compile", "--quiet", "--no-header", "--format", "pylock.toml"),
            *("--python-version", PYTHON, "--python-platform", PLATFORM),
            *("--only-binary", ":all:", "--no-emit-package", project["project"]["name"]),
            *("--constraints", str(constraints), "--output-file", str(made)),
            *(part for extra in extras for part in ("--extra", extra)),
            *("pyproject.toml", str(inputs)),
        ]
        if cpu_torch_at:
            option = "--find-links" if Path(cpu_torch_at).is_dir() else "--extra-index-url"
            command += [option, cpu_torch_at, "--index-strategy", "unsafe-best-match"]
        subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=True)
        return packages_of(made.read_text())


def packages_of(pylock: str) -> Packages:
    """The packages that a `pylock.toml` names, with the hashes of their wheels."""
    return {
        package["name"]: Locked(
            package["version"],
            tuple(
                f"{algorithm}:{value}"
                for wheel in package["wheels"]
                for algorithm, value in wheel["hashes"].items()
            ),
        )
        for package in tomllib.loads(pylock)["packages"]
    }


def requirements(packages: Mapping[str, Locked]) -> str:
    """The text of a lock file, as pip reads it."""
    lines = [
        " \\\n".join([f"{name}=={package.version}", *_hash_options(package.hashes)])
        for name, package in sorted(packages.items())
    ]
    return HEAD + "".join(f"{line}\n" for line in lines)


def _hash_options(hashes: Sequence[str]) -> list[str]:
    return [f"    --hash={each}" for each in sorted(hashes)]


def _write(path: Path, packages: Mapping[str, Locked]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(requirements(packages))


if __name__ == "__main__":
    sys.exit(main())
