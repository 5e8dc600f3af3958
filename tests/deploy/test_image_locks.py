"""Lock files have all that pyproject.toml asks for, at versions that it allows."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from antiphon_tools.images.commands import INSTALLED, OPTIONAL, lock_file
from antiphon_tools.images.lock import (
    ARM64,
    CPU_TORCH,
    PLATFORMS,
    Locked,
    merged,
    packages_of,
    requirements,
)
from tests.deploy.chart_rendering import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
OWN = PROJECT["project"]["name"]
LINE = re.compile(r"([a-z0-9-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
CUDA = re.compile(r"cuda|nvidia|cudnn|cupy|triton|nccl|flashinfer")
FILES = [(image, extra) for image in INSTALLED for extra in ("", *OPTIONAL[image])]


def locked(image: str, extra: str = "") -> dict[str, Version]:
    text = lock_file(image, extra).read_text()
    found = {name: Version(version) for name, version, _ in LINE.findall(text)}
    # Nothing else is in it, no address of a registry either.
    assert LINE.sub("", text).splitlines() == [text.splitlines()[0]]
    return found


def asked(extras: Iterable[str]) -> Iterator[Requirement]:
    """What pyproject.toml wants for these extras, those that they name included."""
    yield from map(Requirement, PROJECT["project"]["dependencies"])
    yield from map(Requirement, PROJECT["build-system"]["requires"])
    for extra in extras:
        for each in map(Requirement, EXTRAS[extra]):
            if each.name == OWN:
                yield from asked(each.extras)
            else:
                yield each


@pytest.mark.parametrize(("image", "extra"), FILES)
def test_what_is_asked_for_is_locked_at_a_version_that_is_allowed(image: str, extra: str) -> None:
    versions = locked(image) | (locked(image, extra) if extra else {})
    for requirement in asked((*INSTALLED[image], *filter(None, [extra]))):
        version = versions[canonicalize_name(requirement.name)]
        # pip takes a local version such as +cpu for its public one.
        assert requirement.specifier.contains(version, prereleases=True), (
            f"{requirement}, and {version} is locked: run `make lock`"
        )


@pytest.mark.parametrize(("image", "extra"), [each for each in FILES if each[1]])
def test_an_extra_adds_to_its_image_and_changes_nothing_of_it(image: str, extra: str) -> None:
    assert not locked(image).keys() & locked(image, extra).keys()


def test_images_have_the_engine_of_their_variant() -> None:
    assert "torch" not in locked("gateway")
    assert f"torch=={locked('stage-cpu')['torch']}" == CPU_TORCH
    for image, extra in FILES:
        if image in ("gateway", "stage-cpu"):
            assert not [name for name in locked(image, extra) if CUDA.search(name)]
    assert [name for name in locked("stage-cuda") if name.startswith("nvidia-")]
    assert {image for image in INSTALLED if "vllm" in locked(image)} == {"stage-vllm"}


def test_a_lock_of_two_platforms_has_the_files_of_both() -> None:
    one, other = Locked("1.0", ("sha256:a", "sha256:b")), Locked("1.0", ("sha256:b", "sha256:c"))
    both = Locked("1.0", ("sha256:a", "sha256:b", "sha256:c"))
    assert merged({"one": one}, {"one": other}, ARM64) == {"one": both}
    for elsewhere in ({}, {"one": Locked("2.0", ())}, {"one": other, "two": other}):
        with pytest.raises(ValueError, match=f"{ARM64} has"):
            merged({"one": one}, elsewhere, ARM64)


@pytest.mark.parametrize("image", INSTALLED)
def test_compiled_packages_of_a_lock_have_a_file_for_each_platform(image: str) -> None:
    text = lock_file(image).read_text()
    hashes = {name: found.count("--hash") for name, _, found in LINE.findall(text)}
    # Wheels of uvloop and msgspec are one for each platform.
    assert hashes["uvloop"] == hashes["msgspec"] == len(PLATFORMS[image])


def test_a_lock_has_the_hash_of_every_wheel() -> None:
    made = packages_of(
        """
        [[packages]]
        name = "one"
        version = "1.0"
        wheels = [{ url = "https://registry.example/one.whl", hashes = { sha256 = "b" } },
                  { url = "https://registry.example/other.whl", hashes = { sha256 = "a" } }]
        """
    )
    assert made == {"one": Locked("1.0", ("sha256:b", "sha256:a"))}
    assert requirements(made).splitlines()[1:] == [
        "one==1.0 \\",
        "    --hash=sha256:a \\",
        "    --hash=sha256:b",
    ]
