"""The command lines that build and push the images."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]

INSTALLED = {
    "gateway": ("gateway", "kubernetes"),
    "stage-cpu": ("stage",),
    "stage-cuda": ("stage",),
    "stage-vllm": ("stage", "vllm"),
}
"""The images, and the extras of pyproject.toml that each has. Tags of the stages' images end with
what is behind the dash, for which the chart asks."""

OPTIONAL = {
    image: ("av", "jwt", "tracing") if image == "gateway" else ("clips", "tracing", "vision")
    for image in INSTALLED
}
"""Further extras that may be asked for."""

IMAGES = tuple(INSTALLED)
CPU_IMAGE = "stage-cpu"
BUILDERS = {
    "docker": ("docker", "build"),
    # Works without a daemon, and in a container that may not make namespaces.
    "buildah": ("buildah", "build", "--isolation", "chroot"),
}
_BASE = re.compile(r"\S+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageBuild:
    """What to build. Raises `ValueError` for what cannot be, with the remedy."""

    base: str
    builder: str = "docker"
    images: tuple[str, ...] = IMAGES
    registry: str = ""
    tag: str = "dev"
    torch_index_url: str = ""
    # Of `OPTIONAL`, beside those that an image has anyway.
    gateway_extras: tuple[str, ...] = ()
    stage_extras: tuple[str, ...] = ()
    push: bool = False

    def __post_init__(self) -> None:
        if not _BASE.fullmatch(self.base):
            raise ValueError(
                f"BASE: {self.base!r} names no digest; give python:3.11-slim@sha256:..., which "
                "`docker buildx imagetools inspect python:3.11-slim` tells"
            )
        if self.builder not in BUILDERS:
            raise ValueError(f"BUILDER: {self.builder!r} is none of {', '.join(BUILDERS)}")
        for image in self.images:
            if image not in IMAGES:
                raise ValueError(f"IMAGES: {image!r} is none of {', '.join(IMAGES)}")
            for extra in self.extras(image):
                if extra not in OPTIONAL[image]:
                    raise ValueError(
                        f"extras: {extra!r} is none of {', '.join(OPTIONAL[image])} for {image}"
                    )
        if CPU_IMAGE in self.images and not self.torch_index_url:
            raise ValueError(
                f"TORCH_INDEX_URL: is empty; {CPU_IMAGE} needs the package index of torch's CPU "
                "builds, which torch's own installation page names (the usual index has torch for "
                f"CUDA, 3 GB more); or leave {CPU_IMAGE} out of IMAGES"
            )
        if self.push and not self.registry:
            raise ValueError("REGISTRY: is empty; name the registry to push to")

    def extras(self, image: str) -> tuple[str, ...]:
        """Those that were asked for."""
        return self.gateway_extras if image == "gateway" else self.stage_extras


def lock_file(image: str, extra: str = "") -> Path:
    """The exact packages of an image, or those that an extra adds."""
    name = f"{image}-{extra}" if extra else image
    return ROOT / "tools" / "antiphon_tools" / "images" / "locks" / f"{name}.txt"


def reference(order: ImageBuild, image: str) -> str:
    """The name of an image, as the chart asks for it."""
    name, _, variant = image.partition("-")
    suffix = f"-{variant}" if variant else ""
    prefix = f"{order.registry.rstrip('/')}/" if order.registry else ""
    return f"{prefix}antiphon-{name}:{order.tag}{suffix}"


def commands(order: ImageBuild) -> list[list[str]]:
    """The command lines in their order, to be run in the root of the repository."""
    lines = [_build(order, image) for image in order.images]
    if order.push:
        lines += [[order.builder, "push", reference(order, image)] for image in order.images]
    return lines


def _build(order: ImageBuild, image: str) -> list[str]:
    arguments = {"BASE": order.base}
    if image == CPU_IMAGE:
        arguments["TORCH_INDEX_URL"] = order.torch_index_url
    names = (lock_file(image, extra).stem for extra in ("", *order.extras(image)))
    arguments["LOCKS"] = " ".join(names)
    given = [
        part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")
    ]
    folder = "gateway" if image == "gateway" else "services"
    tag = ["--tag", reference(order, image)]
    return [*BUILDERS[order.builder], "--file", f"{folder}/Dockerfile", *given, *tag, "."]
