"""Loading: facts, and configurations that are refused by a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.ming_tts import FRAME_SAMPLES, FRAME_WIDTH, PIPELINE, SAMPLE_RATE_HZ
from antiphon.pipelines.registry import pipeline_of
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.flat_settings import stage_config
from tests.unit.services.ming_tts.ming_talker_lab import Asked, TalkerLab, latents_of


def changed(source: Path, folder: Path, path: str, value: object) -> Path:
    """The checkpoint with another value at a path of `config.json`; None removes it."""
    folder.mkdir()
    for each in source.iterdir():
        if each.name != "config.json":
            (folder / each.name).hardlink_to(each)
    config = json.loads((source / "config.json").read_text())
    *parents, name = path.split(".")
    inner = config
    for parent in parents:
        inner = inner[parent]
    inner[name] = value
    if value is None:
        del inner[name]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_checkpoint_is_known_by_its_architecture(checkpoints: dict[str, Path]) -> None:
    assert pipeline_of(checkpoints["windowed"]) is PIPELINE


@pytest.mark.parametrize("folder", ["", "talker"])
def test_a_checkpoint_of_ming_flash_omni_is_known_whole_and_by_its_folder(
    folder: str, checkpoints: dict[str, Path]
) -> None:
    path = checkpoints["flash"] / folder
    assert pipeline_of(path) is PIPELINE
    facts = [load_stage(PIPELINE, r, path, StageConfig(slots=1)).facts for r in PIPELINE.roles]
    assert facts[0].voices == ("db30", "lingguang")
    assert facts[0].checkpoint_fingerprint == facts[1].checkpoint_fingerprint


VOICES_FILE = "talker/data/voice_name.json"


def voices_listed(source: Path, folder: Path, listed: object) -> Path:
    """The checkpoint of Ming-flash-omni with another list of voices; None removes it."""
    for each in source.rglob("*"):
        if each.is_file() and each != source / VOICES_FILE:
            copy = folder / each.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.hardlink_to(each)
    if listed is not None:
        (folder / VOICES_FILE).write_text(json.dumps(listed))
    return folder


WAV = {"prompt_wav_path": "data/DB30.wav", "prompt_text": "Good."}


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        ({"A": WAV, "a": WAV}, "differ only in case: A, a"),
        ({"A": {"prompt_text": "Good."}}, "prompt_wav_path"),
        ({"A": {"prompt_wav_path": "data/none.wav"}}, "none.wav is missing"),
        ({"A": {"prompt_wav_path": "../../outside.wav"}}, "is outside"),
        ({"A": {"prompt_wav_path": "config.json"}}, "config.json: can't be used"),
        (["A"], "instead of a JSON object"),
    ],
)
def test_a_list_of_voices_that_cannot_be_used_is_refused_by_a_sentence(
    listed: object, told: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = voices_listed(checkpoints["flash"], tmp_path / "changed", listed)
    with pytest.raises(FailedPrecondition, match=told):
        load_stage(PIPELINE, "talker", folder, StageConfig(slots=1))


def test_a_checkpoint_without_a_list_has_no_voices(
    checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    lab = TalkerLab(voices_listed(checkpoints["flash"], tmp_path / "changed", None))
    assert lab.facts.voices == ()
    with pytest.raises(InvalidArgument, match="has no named voices"):
        lab.speak(Asked(voice="DB30"))
    (output,) = lab.speak(Asked(changes={"max_tokens": 2}))
    assert latents_of(output).shape == (2, FRAME_WIDTH)


def test_facts(checkpoints: dict[str, Path]) -> None:
    config = StageConfig(slots=1)
    talker = load_stage(PIPELINE, "talker", checkpoints["windowed"], config).facts
    code2wav = load_stage(PIPELINE, "code2wav", checkpoints["windowed"], config).facts
    for facts in (talker, code2wav):
        assert (facts.code_groups, facts.frame_dtype) == (FRAME_WIDTH, "float32")
    assert talker.goes_on_from == ("latents",)
    assert (code2wav.sample_rate_hz, code2wav.samples_per_frame) == (SAMPLE_RATE_HZ, FRAME_SAMPLES)
    assert (talker.context_limit, code2wav.context_limit) == (4096, 4096 // 16)


@pytest.mark.parametrize(
    ("role", "path", "value", "told"),
    [
        (
            "talker",
            "model_type",
            "moe",
            "model_type is 'moe', but this stage only supports 'dense'",
        ),
        ("talker", "ditar_config.qk_norm", "rms_norm", "ditar_config.qk_norm is rms_norm"),
        ("talker", "ditar_config.pe_attn_head", 1, "ditar_config.pe_attn_head is 1"),
        ("talker", "aggregator_config.qk_norm", True, "aggregator_config.qk_norm is true"),
        ("talker", "aggregator_config.pe_attn_head", 1, "aggregator_config.pe_attn_head is 1"),
        ("talker", "ditar_config.patch_size", 2, "ditar_config.patch_size is 2"),
        ("talker", "ditar_config.history_patch_size", None, "history_patch_size"),
        ("talker", "audio_tokenizer_config.sample_rate", 24_000, "sample_rate is 24000"),
        ("code2wav", "audio_tokenizer_config.sample_rate", 24_000, "sample_rate is 24000"),
        ("code2wav", "audio_tokenizer_config.dec_kwargs.output_dim", 320, "output_dim is 320"),
        ("code2wav", "audio_tokenizer_config.dec_kwargs.backbone", None, "backbone"),
    ],
)
def test_a_configuration_that_is_not_computed_is_refused_by_a_sentence(
    role: str,
    path: str,
    value: object,
    told: str,
    checkpoints: dict[str, Path],
    tmp_path: Path,
) -> None:
    folder = changed(checkpoints["windowed"], tmp_path / "changed", path, value)
    with pytest.raises(FailedPrecondition, match=told):
        load_stage(PIPELINE, role, folder, StageConfig(slots=1))


@pytest.mark.parametrize("missing", ["campplus.onnx", "model.safetensors"])
def test_a_missing_file_is_named(
    missing: str, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    folder = changed(checkpoints["windowed"], tmp_path / "changed", "torch_dtype", "float32")
    (folder / missing).unlink()
    with pytest.raises(FailedPrecondition, match=missing.partition(".")[0]):
        load_stage(PIPELINE, "talker", folder, StageConfig(slots=1))


@pytest.mark.parametrize("role", PIPELINE.roles)
@pytest.mark.parametrize("setting", [{"engine": "vllm"}, {"fused": True, "graphs": True}])
def test_settings_that_do_not_apply_are_refused(
    role: str, setting: dict[str, object], checkpoints: dict[str, Path]
) -> None:
    with pytest.raises(InvalidArgument):
        load_stage(PIPELINE, role, checkpoints["windowed"], stage_config(**setting))  # type: ignore[arg-type]
