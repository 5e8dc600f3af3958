"""The command lines that build and push the images."""

from __future__ import annotations

import re
from dataclasses import dataclass

STAGE_EXTRAS = {"cpu": "stage", "cuda": "stage", "vllm": "stage,vllm"}
"""What is installed in each variant of the stages' image; the chart's tags end with these."""

IMAGES = ("gateway", *(f"stage-{variant}" for variant in STAGE_EXTRAS))
BUILDERS = {
    "docker": ("docker", "build"),
    # Works without a daemon, and in a container that may not make namespaces.
    "buildah": ("buildah", "build", "--isolation", "chroot"),
}
GATEWAY_EXTRAS = "gateway,kubernetes"
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
    # Of pyproject.toml, beside those that an image has anyway.
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
        if self.push and not self.registry:
            raise ValueError("REGISTRY: is empty; name the registry to push to")


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
    if image == "gateway":
        folder = "gateway"
        arguments["EXTRAS"] = ",".join((GATEWAY_EXTRAS, *order.gateway_extras))
    else:
        folder, variant = "services", image.removeprefix("stage-")
        arguments["EXTRAS"] = ",".join((STAGE_EXTRAS[variant], *order.stage_extras))
        if variant == "cpu" and order.torch_index_url:
            arguments["TORCH_INDEX_URL"] = order.torch_index_url
    given = [
        part for name, value in arguments.items() for part in ("--build-arg", f"{name}={value}")
    ]
    tag = ["--tag", reference(order, image)]
    return [*BUILDERS[order.builder], "--file", f"{folder}/Dockerfile", *given, *tag, "."]
