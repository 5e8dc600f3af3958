"""What each family declares of its checkpoints' files is what its stages read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.pipelines.registry import own_pipelines, pipeline_of
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.cosyvoice3.tiny_checkpoint import build_tiny_cosyvoice
from antiphon_testkit.covo_audio.tiny_checkpoint import build_tiny_covo
from antiphon_testkit.dynin_omni.tiny_checkpoint import build_tiny_dynin
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.mimo_audio.tiny_checkpoint import (
    AUDIO_TOKENIZER,
    LANGUAGE_MODEL,
    build_nested_tiny_mimo,
    build_tiny_mimo,
)
from antiphon_testkit.ming_flash_omni.flash_checkpoint import build_tiny_flash
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import FLASH
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import (
    build_tiny_checkpoint as build_tiny_omni2_5,
)
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint as build_tiny_omni3
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_tools.hub.selection import description_files, layout_of, weight_files
from antiphon_tools.launcher.preflight import check_checkpoint

OTHERS = (
    "README.md",
    "consolidated.safetensors",
    "image.png",
    "model.gguf",
    "onnx/model.onnx",
    "original/model.safetensors",
    "pytorch_model.bin",
)
"""What repositories have besides."""
UNREAD = {"CosyVoice-BlankEN/model.safetensors"}
"""The reference's own loader reads it, and llm.pt replaces all of it."""


def shards(index: Path) -> set[str]:
    return set(json.loads(index.read_bytes())["weight_map"].values())


def mimo(directory: Path) -> Path:
    build_tiny_mimo(directory)
    return directory / LANGUAGE_MODEL


def nested_mimo(directory: Path) -> Path:
    build_nested_tiny_mimo(directory)
    return directory


def flash(directory: Path) -> Path:
    build_tiny_ming(directory, FLASH)
    return directory


def built(build: Callable[[Path], object]) -> Callable[[Path], Path]:
    def make(directory: Path) -> Path:
        build(directory)
        return directory

    return make


CHECKPOINTS = {
    "cosyvoice3": built(build_tiny_cosyvoice),
    "covo_audio": built(build_tiny_covo),
    "dynin_omni": built(build_tiny_dynin),
    "mimo_audio": mimo,
    "mimo_audio-nested": nested_mimo,
    "ming_flash_omni": built(build_tiny_flash),
    "ming_tts": built(build_tiny_ming),
    "ming_tts-flash": flash,
    "qwen2_5_omni": built(build_tiny_omni2_5),
    "qwen3_omni": built(build_tiny_omni3),
    "qwen3_tts": built(build_tiny_tts),
}


def test_every_family_has_a_case() -> None:
    assert {each.partition("-")[0] for each in CHECKPOINTS} == own_pipelines().keys()


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_the_files_of_a_download_are_those_that_stages_read(tmp_path: Path, case: str) -> None:
    directory = CHECKPOINTS[case](tmp_path / "made")
    own = {
        each.relative_to(directory).as_posix() for each in directory.rglob("*") if each.is_file()
    }
    for name in set(OTHERS) - own:
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(b"no stage reads this")
    paths = {*own, *OTHERS}
    pipeline = pipeline_of(directory)
    layout = layout_of(pipeline, paths)
    chosen = {
        *description_files(layout, paths),
        *weight_files(layout, paths, lambda index: shards(directory / index)),
    }
    assert chosen == own - UNREAD

    # And they load, from a directory that has nothing else.
    downloaded = tmp_path / "downloaded"
    for name in chosen:
        (downloaded / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(directory / name, downloaded / name)
    check_checkpoint(downloaded)
    assert pipeline_of(downloaded).name == pipeline.name
    tokenizer = str(tmp_path / "made" / AUDIO_TOKENIZER) if case == "mimo_audio" else ""
    config = stage_config(slots=1, audio_tokenizer_dir=tokenizer)
    for role in pipeline.roles:
        assert load_stage(pipeline, role, downloaded, config).facts.checkpoint_fingerprint
