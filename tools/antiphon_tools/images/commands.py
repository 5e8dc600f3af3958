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
"""The images and the extras of `pyproject.toml` that each image includes.

The tags of stage images end with the part of the name after the dash. The chart uses these tags.
"""

OPTIONAL = {
    image: ("av", "jwt", "tracing") if image == "gateway" else ("clips", "tracing", "vision")
    for image in INSTALLED
}
"""The additional extras that can be requested."""

IMAGES = tuple(INSTALLED)
CPU_IMAGE = "stage-cpu"
BUILDERS = {
    "docker": ("docker", "build"),
    # This works without a daemon and in containers that cannot create namespaces.
    "buildah": ("buildah", "build", "--isolation", "chroot"),
}
_BASE = re.compile(r"\S+@sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class ImageBuild:
    """The settings of a build.

    Raises `ValueError`, with a remedy, if they are invalid.
    """

    base: str
    builder: str = "docker"
    images: tuple[str, ...] = IMAGES
    registry: str = ""
    tag: str = "dev"
    torch_index_url: str = ""
    # Values of `OPTIONAL`, in addition to the extras that an image always includes.
    gateway_extras: tuple[str, ...] = ()
    stage_extras: tuple[str, ...] = ()
    push: bool = False

    def __post_init__(self) -> None:
        if not _BASE.fullmatch(self.base):
            raise ValueError(
                f"BASE: {self.base!r} has no digest; use python:3.11-slim@sha256:..., with the "
                "digest that `docker buildx imagetools inspect python:3.11-slim` prints"
            )
        if self.builder not in BUILDERS:
            raise ValueError(
                f"BUILDER: unknown builder {self.builder!r}; use one of: {', '.join(BUILDERS)}"
            )
        for image in self.images:
            if image not in IMAGES:
                raise ValueError(
                    f"IMAGES: unknown image {image!r}; use one of: {', '.join(IMAGES)}"
                )
            for extra in self.extras(image):
                if extra not in OPTIONAL[image]:
                    raise ValueError(
                        f"extras: {image} has no extra {extra!r}; use one of: "
                        f"{', '.join(OPTIONAL[image])}"
                    )
        if CPU_IMAGE in self.images and not self.torch_index_url:
            raise ValueError(
                f"TORCH_INDEX_URL: is required for {CPU_IMAGE}; set it to the package index "
                "with CPU builds of torch (see torch's installation page; the default index "
                f"has builds for CUDA, which are 3 GB larger), or remove {CPU_IMAGE} from "
                "IMAGES"
            )
        if self.push and not self.registry:
            raise ValueError("REGISTRY: is required to push images")

    def extras(self, image: str) -> tuple[str, ...]:
        """Return the additional extras that were requested for the image."""
        return self.gateway_extras if image == "gateway" else self.stage_extras


def lock_file(image: str, extra: str = "") -> Path:
    """Return the lock file of an image or of an additional extra."""
    name = f"{image}-{extra}" if extra else image
    return ROOT / "tools" / "antiphon_tools" / "images" / "locks" / f"{name}.txt"


def reference(order: ImageBuild, image: str) -> str:
    """Return the name of an image in the form that the chart uses."""
    name, _, variant = image.partition("-")
    suffix = f"-{variant}" if variant else ""
    prefix = f"{order.registry.rstrip('/')}/" if order.registry else ""
    return f"{prefix}antiphon-{name}:{order.tag}{suffix}"


def commands(order: ImageBuild) -> list[list[str]]:
    """Return the commands in order. They must be run in the root of the repository."""
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
