"""Stages compute with what a checkpoint says, or refuse it by field, value and remedy."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers.models.qwen2_5_omni import configuration_qwen2_5_omni as omni25
from transformers.models.qwen3_omni_moe import configuration_qwen3_omni_moe as omni3

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines import (
    cosyvoice3,
    covo_audio,
    dynin_omni,
    mimo_audio,
    ming_flash_omni,
    ming_tts,
    qwen2_5_omni,
    qwen3_omni,
    qwen3_tts,
)
from antiphon.pipelines.graph import Pipeline
from antiphon_services.stage.config_fields import (
    ALWAYS_IDLE,
    FOREIGN,
    ConfigPart,
    check_fields,
    declared_fields,
    names,
)
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.cosyvoice3.tiny_checkpoint import PRESETS, build_tiny_cosyvoice
from antiphon_testkit.covo_audio.tiny_checkpoint import build_tiny_covo
from antiphon_testkit.dynin_omni.tiny_checkpoint import build_tiny_dynin
from antiphon_testkit.mimo_audio.tiny_checkpoint import build_nested_tiny_mimo
from antiphon_testkit.ming_flash_omni.flash_checkpoint import build_tiny_flash
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.qwen2_5_omni import tiny_checkpoint as tiny25
from antiphon_testkit.qwen3_omni import tiny_checkpoint as tiny3
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_testkit.qwen3_tts.tiny_shape import BASE
from tests.own_records import lines_of
from tests.unit.services.field_table import ALL, PAGE, Stated, page

ROOT = Path(__file__).parents[3]
FILE = Path("config.json")
# The classes of transformers, by family and path; those of Qwen3-TTS are the vendor's.
CLASSES: dict[tuple[str, str], Any] = {
    ("Qwen3-Omni", ""): omni3.Qwen3OmniMoeConfig,
    ("Qwen3-Omni", "thinker_config"): omni3.Qwen3OmniMoeThinkerConfig,
    ("Qwen3-Omni", "thinker_config.text_config"): omni3.Qwen3OmniMoeTextConfig,
    ("Qwen3-Omni", "thinker_config.audio_config"): omni3.Qwen3OmniMoeAudioEncoderConfig,
    ("Qwen3-Omni", "thinker_config.vision_config"): omni3.Qwen3OmniMoeVisionEncoderConfig,
    ("Qwen3-Omni", "talker_config"): omni3.Qwen3OmniMoeTalkerConfig,
    ("Qwen3-Omni", "talker_config.text_config"): omni3.Qwen3OmniMoeTalkerTextConfig,
    ("Qwen3-Omni", "talker_config.code_predictor_config"):
        omni3.Qwen3OmniMoeTalkerCodePredictorConfig,
    ("Qwen3-Omni", "code2wav_config"): omni3.Qwen3OmniMoeCode2WavConfig,
    ("Qwen2.5-Omni", ""): omni25.Qwen2_5OmniConfig,
    ("Qwen2.5-Omni", "thinker_config"): omni25.Qwen2_5OmniThinkerConfig,
    ("Qwen2.5-Omni", "thinker_config.text_config"): omni25.Qwen2_5OmniTextConfig,
    ("Qwen2.5-Omni", "thinker_config.audio_config"): omni25.Qwen2_5OmniAudioEncoderConfig,
    ("Qwen2.5-Omni", "thinker_config.vision_config"): omni25.Qwen2_5OmniVisionEncoderConfig,
    ("Qwen2.5-Omni", "talker_config"): omni25.Qwen2_5OmniTalkerConfig,
    ("Qwen2.5-Omni", "token2wav_config.dit_config"): omni25.Qwen2_5OmniDiTConfig,
    ("Qwen2.5-Omni", "token2wav_config.bigvgan_config"): omni25.Qwen2_5OmniBigVGANConfig,
}  # fmt: skip


def all_parts() -> Iterator[tuple[Stated, ConfigPart]]:
    for stated in ALL:
        for part in (*stated.parts, *stated.vllm_parts):
            yield stated, part


def holding(path: str, **values: Any) -> dict[str, Any]:
    """A configuration with these fields there."""
    for name in reversed(path.split(".") if path else []):
        values = {name: values}
    return values


@pytest.mark.parametrize(("family", "path"), CLASSES)
def test_every_field_that_transformers_declares_is_stated(family: str, path: str) -> None:
    declared = declared_fields(CLASSES[family, path])
    found = [part for stated, part in all_parts() if (stated.family, part.path) == (family, path)]
    assert found
    for part in found:
        # What a class does not hold of itself, and every object may have.
        missing = declared - part.stated - FOREIGN.keys()
        assert not missing, missing


def test_no_field_is_stated_twice() -> None:
    for stated, part in all_parts():
        said = [part.computed, frozenset(part.only), part.idle, part.rope_fields]
        said += [part.window_fields]
        assert sum(map(len, said)) == len(frozenset().union(*said)), (stated.stage, part.path)
        assert not frozenset().union(*said) & ALWAYS_IDLE, (stated.stage, part.path)


OTHER = [
    (stated, part, name)
    for stated, part in all_parts()
    for name in part.required
]  # fmt: skip


@pytest.mark.parametrize(
    ("stated", "part", "name"),
    OTHER,
    ids=[f"{s.family}-{s.stage}-{p.path}-{n}" for s, p, n in OTHER],
)
def test_other_value_is_refused_by_field_value_and_remedy(
    stated: Stated, part: ConfigPart, name: str
) -> None:
    for other in ("strange", True, 12_345):
        if any(type(other) is type(each) and other == each for each in part.required[name]):
            continue
        config = holding(part.path, **{name: other})
        with pytest.raises(FailedPrecondition) as refused:
            check_fields(FILE, config, [part])
        said = str(refused.value)
        where = f"{part.path}.{name}" if part.path else name
        assert said.startswith(f"config.json: {where} is {str(other).lower()}, "), said
        assert "; use another checkpoint" in said
    for value in part.required[name]:
        check_fields(FILE, holding(part.path, **{name: value}), [part])


def test_rotary_embeddings_are_refused_unless_one_table_has_all_positions() -> None:
    for _, part in all_parts():
        if not part.ropes:
            continue
        for name in ("rope_parameters", "rope_scaling"):
            for kind in part.ropes:
                check_fields(FILE, holding(part.path, **{name: {"rope_type": kind}}), [part])
            check_fields(FILE, holding(part.path, **{name: None}), [part])
            for key in ("rope_type", "type"):
                for kind in ("dynamic", "longrope"):
                    with pytest.raises(FailedPrecondition, match=f"rope_type is {kind}"):
                        check_fields(FILE, holding(part.path, **{name: {key: kind}}), [part])
            partial = {"rope_type": part.ropes[0], "partial_rotary_factor": 0.5}
            with pytest.raises(FailedPrecondition, match=r"partial_rotary_factor is 0\.5"):
                check_fields(FILE, holding(part.path, **{name: partial}), [part])


def test_window_that_is_off_and_full_attention_are_taken() -> None:
    part = ConfigPart("a", computed=names("width"))
    off = {"use_sliding_window": False, "sliding_window": 4096}
    full = {"layer_types": ["full_attention", "full_attention"]}
    check_fields(FILE, holding("a", **off, **full), [part])
    with pytest.raises(FailedPrecondition, match=r"a\.layer_types is"):
        check_fields(FILE, holding("a", layer_types=["full_attention", "chunked"]), [part])
    with pytest.raises(FailedPrecondition, match=r"a\.sliding_window is 4096"):
        check_fields(FILE, holding("a", sliding_window=4096), [part])


def test_fields_that_nobody_declares_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    part = ConfigPart("a.b", computed=names("width"))
    with caplog.at_level(logging.WARNING):
        check_fields(FILE, {"a": {"b": {"width": 3, "use_cache": True}}}, [part])
        assert not lines_of(caplog, check_fields.__module__)
        check_fields(FILE, {"a": {"b": {"width": 3, "mood": 1, "air": None}}}, [part])
        check_fields(FILE, {"a": 3}, [part])
    assert lines_of(caplog, check_fields.__module__) == [
        "config.json: a.b: ignored fields: air, mood"
    ]


def test_released_configuration_is_taken_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    config = json.loads((Path(__file__).parent / "released_qwen3_omni.json").read_text())
    with caplog.at_level(logging.WARNING):
        for stated in ALL:
            if stated.family == "Qwen3-Omni":
                for parts in (stated.parts, stated.vllm_parts):
                    check_fields(FILE, config, parts)
    assert not lines_of(caplog, check_fields.__module__)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Pipeline, Path]]:
    """A checkpoint of each family."""
    folder = tmp_path_factory.mktemp("checkpoints")
    tiny3.build_tiny_checkpoint(folder / "3")
    tiny25.build_tiny_checkpoint(folder / "25")
    build_tiny_tts(folder / "tts", BASE)
    build_tiny_cosyvoice(folder / "cosy", PRESETS["voices"])
    build_tiny_covo(folder / "covo")
    build_tiny_dynin(folder / "dynin")
    build_nested_tiny_mimo(folder / "mimo")
    build_tiny_ming(folder / "ming")
    build_tiny_flash(folder / "flash")
    return {
        "Qwen3-Omni": (qwen3_omni.PIPELINE, folder / "3"),
        "Qwen2.5-Omni": (qwen2_5_omni.PIPELINE, folder / "25"),
        "Qwen3-TTS": (qwen3_tts.PIPELINE, folder / "tts"),
        "CosyVoice3": (cosyvoice3.PIPELINE, folder / "cosy"),
        "Covo-Audio": (covo_audio.PIPELINE, folder / "covo"),
        "Dynin-Omni": (dynin_omni.PIPELINE, folder / "dynin"),
        "MiMo-Audio": (mimo_audio.PIPELINE, folder / "mimo"),
        "Ming TTS": (ming_tts.PIPELINE, folder / "ming"),
        "Ming-flash-omni": (ming_flash_omni.PIPELINE, folder / "flash"),
    }


@pytest.mark.parametrize(
    ("stated", "part"),
    [(stated, part) for stated in ALL for part in stated.parts],
    ids=lambda each: getattr(each, "path", None) or getattr(each, "stage", None) or "whole",
)
def test_loader_refuses_what_its_parts_refuse(
    stated: Stated, part: ConfigPart, tiny: dict[str, tuple[Pipeline, Path]], tmp_path: Path
) -> None:
    pipeline, source = tiny[stated.family]
    directory = tmp_path / "checkpoint"
    # Only the one file is written anew.
    for each in source.rglob("*"):
        if each.is_file():
            copy = directory / each.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.hardlink_to(each)
    file = directory / stated.file
    text = file.read_text()
    file.unlink()
    file.write_text(
        _planted_in_yaml(text, part.path)
        if file.suffix == ".yaml"
        else _planted_in_json(text, part.path)
    )
    where = f"{part.path}.mlp_bias" if part.path else "mlp_bias"
    with pytest.raises(FailedPrecondition, match=re.escape(f"{where} is true")):
        load_stage(pipeline, stated.stage, directory, StageConfig(slots=1))


def _planted_in_json(text: str, path: str) -> str:
    config = json.loads(text)
    inner = config
    for name in path.split(".") if path else ():
        inner = inner[name]
    inner["mlp_bias"] = True
    return json.dumps(config)


def _planted_in_yaml(text: str, path: str) -> str:
    """The text of a file with tags that only its own reader knows."""
    lines, at = text.splitlines(), 0
    for name in path.split("."):
        at = next(n for n in range(at, len(lines)) if lines[n].strip().startswith(f"{name}:")) + 1
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    return "\n".join([*lines[:at], f"{indent}mlp_bias: true", *lines[at:]])


def test_page_lists_what_the_loaders_state() -> None:
    """Else run `python -m tests.unit.services.field_table`."""
    assert PAGE.read_text() == page(PAGE.read_text())


def test_tests_that_the_page_names_are_there() -> None:
    named = set(re.findall(r"`(tests/[\w/]+\.py)`(?: (\w+))?", PAGE.read_text()))
    assert len(named) > 10
    for file, case in named:
        text = (ROOT / file).read_text()
        assert not case or f'"{case}"' in text, (file, case)
