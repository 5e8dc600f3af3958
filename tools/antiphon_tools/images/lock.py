"""`python -m antiphon_tools.images.lock`: resolve the packages of the images again, with hashes.

The tool `uv` resolves the requirements in `pyproject.toml` to the newest compatible versions, using
wheels for the Python version and the platforms of the images. A package has the same version on all
platforms.

The extras of an image are resolved together with it, so that all of them are compatible. Since only
few images include a given extra, its additional packages are stored in a separate file. When images
are built, only these versions, and only files with these hashes, can be installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon_tools.images.commands import IMAGES, INSTALLED, OPTIONAL, ROOT, lock_file

PYTHON = "3.11"
# glibc 2.31 or newer, which every version of Debian since 11 includes.
X86_64, ARM64 = "x86_64-manylinux_2_31", "aarch64-manylinux_2_31"
# vLLM requires tilelang, whose arm64 wheels need a newer glibc. Debian 12 has 2.36.
ARM64_DEBIAN_12 = "aarch64-manylinux_2_35"
PLATFORMS = {
    "gateway": (X86_64, ARM64),
    # The index used for `make lock` has had no CPU build of torch for arm64, and PyPI's
    # build includes CUDA.
    "stage-cpu": (X86_64,),
    "stage-cuda": (X86_64, ARM64),
    "stage-vllm": (X86_64, ARM64_DEBIAN_12),
}
"""The platforms of each image. Versions are determined by the first platform."""
# The default index only contains CUDA builds of torch.
CPU_IMAGE = "stage-cpu"
CPU_TORCH = "torch==2.13.0+cpu"
NAMES = {X86_64: "x86-64", ARM64: "arm64", ARM64_DEBIAN_12: "arm64"}


@dataclass(frozen=True)
class Locked:
    """A version of a package and the hashes of its files in the form `sha256:...`."""

    version: str
    hashes: tuple[str, ...]


Packages = dict[str, Locked]


def main() -> int:
    """Write the lock files of all images or of the images given on the command line."""
    parser = argparse.ArgumentParser(prog="lock", description="Locks the packages of the images.")
    parser.add_argument(
        "images", nargs="*", metavar="IMAGE", help=(f"images to lock: {' '.join(IMAGES)}")
    )
    parser.add_argument(
        "--torch-index-url", help=f"package index or folder with {CPU_TORCH}, for {CPU_IMAGE}"
    )
    asked = parser.parse_args()
    for image in asked.images or IMAGES:
        where = asked.torch_index_url if image == CPU_IMAGE else ""
        if image == CPU_IMAGE and not where:
            print(f"lock: --torch-index-url is required for {CPU_IMAGE}", file=sys.stderr)
            return 2
        platforms = PLATFORMS[image]
        every = resolved((*INSTALLED[image], *OPTIONAL[image]), {}, where, platforms)
        own = resolved(INSTALLED[image], every, where, platforms)
        _write(lock_file(image), own, platforms)
        for extra in OPTIONAL[image]:
            more = resolved((*INSTALLED[image], extra), every, where, platforms)
            added = {n: p for n, p in more.items() if n not in own}
            _write(lock_file(image, extra), added, platforms)
        print(f"{image}: {len(own)} packages", flush=True)
    return 0


def resolved(
    extras: Sequence[str],
    versions: Mapping[str, Locked],
    cpu_torch_at: str,
    platforms: Sequence[str] = (X86_64,),
) -> Packages:
    """Resolve the build requirements and the requirements of the given extras in `pyproject.toml`.

    `versions` pins packages to a version. The CPU build of torch is used if `cpu_torch_at` is set
    to its index. The result includes files for all platforms. Raises
    `subprocess.CalledProcessError`, or `ValueError` if a platform requires different packages.
    """
    found: Packages = {}
    for platform in platforms:
        own = _resolved(extras, {**versions, **found}, cpu_torch_at, platform)
        found = merged(found, own, platform) if found else own
    return found


def merged(packages: Packages, others: Packages, platform: str) -> Packages:
    """Merge the hashes of the same packages.

    Raises `ValueError` if the packages or their versions differ.
    """
    for name in packages.keys() | others.keys():
        one, other = packages.get(name), others.get(name)
        if one is None or other is None or one.version != other.version:
            raise ValueError(
                f"{name}: {platform} has {other.version if other else 'none'}, not "
                f"{one.version if one else 'none'}; take the platform out of PLATFORMS"
            )
    return {
        name: Locked(each.version, tuple(dict.fromkeys((*each.hashes, *others[name].hashes))))
        for name, each in packages.items()
    }


def _resolved(
    extras: Sequence[str], versions: Mapping[str, Locked], cpu_torch_at: str, platform: str
) -> Packages:
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
            *("--python-version", PYTHON, "--python-platform", platform),
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
    """Return the packages in a `pylock.toml`, with the hashes of their wheels."""
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


def requirements(packages: Mapping[str, Locked], platforms: Sequence[str] = (X86_64,)) -> str:
    """Return the content of a lock file in the format that pip reads."""
    machines = " and ".join(NAMES[each] for each in platforms)
    head = (
        f"# Made by `make lock` from pyproject.toml, for CPython {PYTHON} on {machines} Linux: "
        "wheels alone.\n"
    )
    lines = [
        " \\\n".join([f"{name}=={package.version}", *_hash_options(package.hashes)])
        for name, package in sorted(packages.items())
    ]
    return head + "".join(f"{line}\n" for line in lines)


def _hash_options(hashes: Sequence[str]) -> list[str]:
    return [f"    --hash={each}" for each in sorted(hashes)]


def _write(path: Path, packages: Mapping[str, Locked], platforms: Sequence[str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(requirements(packages, platforms))


if __name__ == "__main__":
    sys.exit(main())
