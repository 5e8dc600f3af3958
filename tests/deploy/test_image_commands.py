"""`make images` says how it builds, and the names are those that the chart asks for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from antiphon_tools.images.commands import IMAGES, ImageBuild, commands, reference
from tests.deploy.chart_rendering import REGISTRY, ROOT, Values, render

BASE = f"python:3.11-slim@sha256:{'0' * 64}"


def make_images(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "--silent", "images", f"PYTHON={sys.executable}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_make_says_the_commands_of_a_dry_run() -> None:
    said = make_images(
        f"BASE={BASE}",
        "IMAGES=gateway stage-cpu stage-vllm",
        f"REGISTRY={REGISTRY}",
        "TAG=1",
        "TORCH_INDEX_URL=https://index.example/cpu",
        "ARGS=--dry-run --stage-extras tracing --push",
    )
    assert said.stdout.splitlines() == [
        f"docker build --file gateway/Dockerfile --build-arg BASE={BASE} "
        f"--build-arg LOCKS=gateway --tag {REGISTRY}/antiphon-gateway:1 .",
        f"docker build --file services/Dockerfile --build-arg BASE={BASE} "
        "--build-arg TORCH_INDEX_URL=https://index.example/cpu "
        f"--build-arg 'LOCKS=stage-cpu stage-cpu-tracing' --tag {REGISTRY}/antiphon-stage:1-cpu .",
        f"docker build --file services/Dockerfile --build-arg BASE={BASE} --build-arg "
        f"'LOCKS=stage-vllm stage-vllm-tracing' --tag {REGISTRY}/antiphon-stage:1-vllm .",
        f"docker push {REGISTRY}/antiphon-gateway:1",
        f"docker push {REGISTRY}/antiphon-stage:1-cpu",
        f"docker push {REGISTRY}/antiphon-stage:1-vllm",
    ]


def test_make_refuses_a_base_that_may_be_another_tomorrow() -> None:
    refused = make_images("BASE=python:3.11-slim", "ARGS=--dry-run")
    assert refused.returncode != 0
    assert not refused.stdout
    assert "BASE: 'python:3.11-slim' has no digest" in refused.stderr


def test_image_for_cpus_is_refused_when_no_index_has_its_torch() -> None:
    with pytest.raises(ValueError, match=r"^TORCH_INDEX_URL: .* remove stage-cpu from IMAGES"):
        ImageBuild(BASE, images=("gateway", "stage-cpu"))
    (line,) = commands(ImageBuild(BASE, images=("stage-cpu",), torch_index_url="index"))
    assert "LOCKS=stage-cpu" in line
    assert line[-2:] == ["antiphon-stage:dev-cpu", "."]


def test_buildah_needs_no_namespaces() -> None:
    (line,) = commands(ImageBuild(BASE, builder="buildah", images=("gateway",)))
    assert line[:4] == ["buildah", "build", "--isolation", "chroot"]


@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"base": "python:3.11-slim"}, "BASE"),
        ({"base": "python:3.11-slim@sha256:abc"}, "BASE"),
        ({"builder": "kaniko"}, "BUILDER"),
        ({"images": ("stage-amd",)}, "IMAGES"),
        ({"push": True}, "REGISTRY"),
        ({"gateway_extras": ("vision",)}, "extras"),
        ({"stage_extras": ("av",)}, "extras"),
    ],
)
def test_what_cannot_be_built_is_refused_with_its_name(wrong: Values, place: str) -> None:
    with pytest.raises(ValueError, match=f"^{place}: "):
        ImageBuild(**{"base": BASE, "torch_index_url": "index", **wrong})


@pytest.mark.parametrize(
    ("image", "stage"),
    [
        ("stage-cpu", {}),
        ("stage-cuda", {"accelerator": {"type": "nvidia"}}),
        ("stage-vllm", {"accelerator": {"type": "nvidia"}, "config": {"engine": "vllm"}}),
    ],
)
def test_images_have_the_names_that_the_chart_asks_for(image: str, stage: Values) -> None:
    order = ImageBuild(BASE, registry=REGISTRY, tag="1", torch_index_url="index")
    images = {"registry": REGISTRY, "tag": "1"}
    pods = render({"images": images, "stages": {"thinker": stage}}).pods()
    asked = {name: pod["containers"][0]["image"] for name, pod in pods.items()}
    assert asked["demo-antiphon-thinker"] == reference(order, image)
    assert asked["demo-antiphon-gateway"] == reference(order, "gateway")
    assert image in IMAGES
