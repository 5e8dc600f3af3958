"""A repository that two pipelines support: without `pipeline`, the smaller download is chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.deployment.schema import Deployment
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.registry import pipeline_for
from antiphon_tools.hub.checkpoint import fetch_checkpoint, fetch_headers
from antiphon_tools.hub.deployment import with_directories
from antiphon_tools.hub.hub_id import HubId
from antiphon_tools.hub.settings import HubSettings
from antiphon_tools.launcher.plan import CHECKOUT, resolve
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.unit.tools.hub.made_repository import safetensors

FLASH = HubId("acme/Flash-1")
TALKER_ALONE, WHOLE = "ming_tts", "ming_flash_omni"
INDEX, SHARD = "model.safetensors.index.json", "model-00001-of-00001.safetensors"
SOURCE = "https://github.com/inclusionAI/Ming"

Prepare = Callable[[HubSettings, Path], object]


def write_flash(folder: Path) -> Path:
    """The files of a whole checkpoint."""
    files = {
        "config.json": b'{"architectures": ["BailingMM2NativeForConditionalGeneration"]}',
        "tokenizer.json": b"{}",
        "tokenizer_config.json": b"{}",
        "preprocessor_config.json": b"{}",
        INDEX: json.dumps({"weight_map": {"data": SHARD}}).encode(),
        SHARD: safetensors(100_000),
        "talker/config.json": b"{}",
        "talker/model.safetensors": safetensors(1000),
        "talker/vae/config.json": b"{}",
        "talker/vae/model.safetensors": safetensors(1000),
        "talker/llm/config.json": b"{}",
        "talker/campplus.onnx": b"onnx",
        "talker/data/voice_name.json": b"{}",
    }
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def flash(tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub({FLASH.repository: write_flash(tmp_path / "flash")}) as running:
        yield running


@pytest.fixture
def settings(flash: LoopbackHub, tmp_path: Path) -> HubSettings:
    return HubSettings(cache=tmp_path / "cache", endpoint=flash.url)


def nothing(settings: HubSettings, folder: Path) -> None:
    """Leave the cache empty."""


def planned(settings: HubSettings, folder: Path) -> None:
    """Store the index of the thinker's weights, as `antiphon plan` does."""
    folder.mkdir()
    fetch_headers(FLASH, settings, folder, pipeline=WHOLE)
    (index,) = settings.cache_dir.glob(f"*/snapshots/*/{INDEX}")
    assert not index.with_name(SHARD).exists()


def whole(settings: HubSettings, folder: Path) -> None:
    """Store the whole checkpoint."""
    assert (fetch_checkpoint(FLASH, settings, pipeline=WHOLE) / SHARD).is_file()


@pytest.mark.parametrize("offline", [False, True], ids=["online", "offline"])
@pytest.mark.parametrize("prepare", [nothing, planned, whole])
def test_what_is_in_the_cache_does_not_choose_the_pipeline(
    prepare: Prepare, offline: bool, flash: LoopbackHub, settings: HubSettings, tmp_path: Path
) -> None:
    prepare(settings, tmp_path / "headers")
    if offline:
        # The talker must be there.
        fetch_checkpoint(FLASH, settings)
        settings = replace(settings, offline=True)
    flash.asked.clear()
    found = with_directories(Deployment(model=FLASH.repository), settings)
    assert found.pipeline == TALKER_ALONE
    assert not flash.asked_for(SHARD)
    # The launcher and the stages only see the directory.
    launched, pipeline = resolve(found, CHECKOUT)
    assert pipeline.name == TALKER_ALONE
    assert pipeline_for(Path(launched.model), launched.pipeline).name == TALKER_ALONE


def test_the_pipeline_of_the_deployment_is_downloaded(settings: HubSettings) -> None:
    asked = Deployment(model=FLASH.repository, pipeline=WHOLE)
    found = with_directories(asked, settings)
    assert found.pipeline == WHOLE
    assert (Path(found.model) / SHARD).is_file()
    assert (Path(found.model) / "talker/campplus.onnx").is_file()
    offline = with_directories(asked, replace(settings, offline=True))
    assert offline == found


@pytest.mark.parametrize(
    "lacking",
    [
        ("tokenizer.json",),
        ("preprocessor_config.json",),
        ("tokenizer.json", "preprocessor_config.json"),
    ],
    ids=" ".join,
)
def test_files_that_the_thinker_needs_are_missed_before_its_weights_come(
    lacking: tuple[str, ...], flash: LoopbackHub, settings: HubSettings, tmp_path: Path
) -> None:
    for name in lacking:
        (flash.repositories[FLASH.repository] / name).unlink()
    named = f"^{FLASH}: {' and '.join(lacking)} not found.* from {SOURCE}"
    with pytest.raises(FailedPrecondition, match=named) as refused:
        fetch_checkpoint(FLASH, settings, pipeline=WHOLE)
    assert refused.value.field == "model"
    assert {each.path.rpartition("/")[2] for each in flash.asked} == {"main", "config.json"}
    # The talker doesn't need them, and neither does an estimate of the memory.
    (tmp_path / "headers").mkdir()
    headers = fetch_headers(FLASH, settings, tmp_path / "headers", pipeline=WHOLE)
    assert (headers / SHARD).is_file()
    assert (fetch_checkpoint(FLASH, settings) / "talker/config.json").is_file()


def test_a_cache_without_the_files_that_the_thinker_needs_is_incomplete(
    settings: HubSettings,
) -> None:
    (fetch_checkpoint(FLASH, settings, pipeline=WHOLE) / "tokenizer.json").unlink()
    offline = replace(settings, offline=True)
    with pytest.raises(FailedPrecondition, match=r"tokenizer\.json not found"):
        fetch_checkpoint(FLASH, offline, pipeline=WHOLE)
    assert fetch_checkpoint(FLASH, offline)
