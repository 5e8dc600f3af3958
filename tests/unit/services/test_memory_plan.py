"""What stages take of a GPU is told before they load, and the chart's presets fit their cards."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import save_file
from transformers import Qwen3OmniMoeConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniTalkerForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2_5OmniToken2WavModel,
)
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCode2Wav,
    Qwen3OmniMoeTalkerForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.runtime.checkpoint.weights import StoredSize, Weights
from antiphon_services.cosyvoice3.code2wav import load as cosyvoice3_code2wav
from antiphon_services.lm.memory import WORKING_BYTES, SlotMemory
from antiphon_services.mimo_audio.code2wav import load as mimo_code2wav
from antiphon_services.ming_tts.code2wav import load as ming_tts_code2wav
from antiphon_services.qwen2_5_omni.token2wav import load as token2wav
from antiphon_services.qwen3_omni.code2wav import load as qwen3_omni_code2wav
from antiphon_services.qwen3_tts.code2wav import load as qwen3_tts_code2wav
from antiphon_services.stage import memory_plan
from antiphon_services.stage.engines import TORCH, VLLM, context_limit
from antiphon_services.stage.memory_plan import (
    CONTEXT_BYTES,
    VLLM_WORKING_BYTES,
    Cached,
    MemoryPlan,
    StageMemory,
    StoredPart,
    check_room,
    decoder_memory,
    plan_stage,
    planned_limit,
)
from antiphon_services.vocoder.stage import frame_limit
from antiphon_testkit.cosyvoice3 import tiny_checkpoint as cosyvoice3_checkpoint
from antiphon_testkit.cosyvoice3.tensor_shapes import flow_shapes, talker_shapes, vocoder_shapes
from antiphon_testkit.cosyvoice3.tiny_shape import CosyVoiceShape
from antiphon_testkit.mimo_audio import tiny_checkpoint as mimo_checkpoint
from antiphon_testkit.mimo_audio.tensor_shapes import codec_shapes, model_shapes
from antiphon_testkit.mimo_audio.tiny_shape import MimoShape
from antiphon_testkit.ming_tts import tiny_checkpoint as ming_tts_checkpoint
from antiphon_testkit.qwen2_5_omni import tiny_checkpoint as qwen2_5_omni_checkpoint
from antiphon_testkit.qwen3_omni import tiny_checkpoint as qwen3_omni_checkpoint
from antiphon_testkit.qwen3_tts import tiny_checkpoint as qwen3_tts_checkpoint
from tests.own_records import lines_of, records_of
from tests.unit.services.released_names import omni3_config, omni25_config

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm/antiphon/ci"
CACHED = Cached(layers=4, key_heads=2, head_dim=16)
POSITION_BYTES = 2 * 4 * 2 * 16 * 2


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    tensors = {
        "talker.a": torch.zeros(100, 10, dtype=torch.float32),
        "talker.b": torch.zeros(50, dtype=torch.bfloat16),
        "thinker.c": torch.zeros(7),
    }
    save_file(tensors, tmp_path / "model.safetensors")
    return Weights(tmp_path)


def with_free(monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80_000_000_000))


PLAN = memory_plan.__name__


def limit_of(weights: Weights, config: StageConfig, most: int = 65_536, engine: str = TORCH) -> int:
    layers = {
        "num_hidden_layers": CACHED.layers,
        "num_attention_heads": CACHED.key_heads,
        "head_dim": CACHED.head_dim,
        "max_position_embeddings": most,
    }
    stored = StoredPart(weights, "talker.")
    return planned_limit(decoder_memory("talker", config, layers, stored, engine=engine))


def test_sizes_of_weights_are_those_of_their_headers(weights: Weights) -> None:
    both = {"float32": StoredSize(1_000, 4_000), "bfloat16": StoredSize(50, 100)}
    assert weights.sizes("talker.") == both
    assert weights.sizes("") == both | {"float32": StoredSize(1_007, 4_028)}
    assert weights.sizes("", ("talker.b", "thinker.")) == {"float32": StoredSize(1_000, 4_000)}


def test_context_limit_is_what_fits_by_default_on_a_gpu(
    weights: Weights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rest = 16 * 1_000 * POSITION_BYTES
    with_free(monkeypatch, WORKING_BYTES + 2 * 1050 + rest)
    for given in (None, "fits"):
        config = StageConfig(device="cuda", context_limit=given)  # type: ignore[arg-type]
        with caplog.at_level(logging.INFO):
            assert limit_of(weights, config) == 960  # whole steps of 64
        assert "context_limit is 960 (fits): weights: 0.00 GB" in lines_of(caplog, PLAN)[-1]
    assert limit_of(weights, StageConfig(device="cuda"), most=700) == 700
    # The model's slots find the room that was planned for them.
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    with_free(monkeypatch, WORKING_BYTES + rest)
    SlotMemory(16, 960, POSITION_BYTES, torch.device("cuda")).require_room()


def test_numbers_that_fit_are_taken_as_they_are(
    weights: Weights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with_free(monkeypatch, WORKING_BYTES + 2 * 1050 + 16 * 1_024 * POSITION_BYTES)
    with caplog.at_level(logging.INFO):
        assert limit_of(weights, StageConfig(device="cuda", context_limit=900)) == 900
        assert limit_of(weights, StageConfig(device="cuda", context_limit=1_024)) == 1_024
        assert limit_of(weights, StageConfig(device="cuda", context_limit=0), most=800) == 800
    assert {each.levelname for each in records_of(caplog, PLAN)} == {"INFO"}
    assert "memory plan: weights" in lines_of(caplog, PLAN)[0]
    with pytest.raises(InvalidArgument, match="exceeds the checkpoint's maximum of 700"):
        limit_of(weights, StageConfig(device="cuda", context_limit=900), most=700)


@pytest.mark.parametrize(("given", "positions"), [(1_025, 1_025), (0, 65_536)])
def test_numbers_that_do_not_fit_are_refused_before_the_stage_loads(
    given: int, positions: int, weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, WORKING_BYTES + 2 * 1050 + 16 * 1_024 * POSITION_BYTES)
    with pytest.raises(InvalidArgument) as refused:
        limit_of(weights, StageConfig(device="cuda", context_limit=given))
    assert refused.value.field == "context_limit"
    assert f"talker: context_limit {given} does not fit on cuda: " in refused.value.message
    slots = 16 * 1_024 // positions
    assert f"{slots} slots of {positions} or 16 of 1024 would fit" in refused.value.message
    assert "set context_limit to 1024 or `fits`" in refused.value.message


def test_what_can_never_fit_names_no_limit_to_take(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, WORKING_BYTES + 2 * 1050 + 16 * 100 * POSITION_BYTES)
    with pytest.raises(
        InvalidArgument, match=r"16 of 64 would fit; reduce slots, or free"
    ) as refused:
        limit_of(weights, StageConfig(device="cuda", context_limit=1_024))
    assert "set context_limit" not in refused.value.message


def test_stage_without_room_is_refused_before_it_loads(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_free(monkeypatch, WORKING_BYTES + 1_000_000)
    with pytest.raises(
        InvalidArgument, match="can't find room on cuda for at least 512"
    ) as refused:
        limit_of(weights, StageConfig(device="cuda"))
    assert refused.value.field == "context_limit"


def test_everything_fits_where_nothing_is_planned(weights: Weights) -> None:
    for given in (None, "fits", 0):
        config = StageConfig(context_limit=given)  # type: ignore[arg-type]
        assert limit_of(weights, config) == context_limit("talker", config, 65_536) == 65_536
        assert frame_limit(config, 8_000) == 8_000
    assert frame_limit(StageConfig(context_limit=9_000), 8_000) == 9_000


def test_vllm_keeps_quantised_weights_and_pages_what_is_left_of_its_share() -> None:
    arguments = {"gpu_memory_utilization": 0.5, "tensor_parallel_size": 2}
    config = StageConfig(device="cuda", engine="vllm", engine_args=arguments)
    plan = plan_stage(config, 100, 60, CACHED, free=10**9, total=10**10, engine=VLLM)
    assert (plan.room, plan.weights, plan.slots) == (10**9, 30, 1)
    assert plan.position_bytes == POSITION_BYTES // 2


def vllm_config(**arguments: Any) -> StageConfig:
    return StageConfig(device="cuda", engine="vllm", context_limit=1_000, engine_args=arguments)


def test_vllm_is_refused_what_does_not_fit_even_without_working_memory(
    weights: Weights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What vLLM computes with is an estimate: within it the plan warns, and vLLM decides."""
    needed = 4100 + 1_000 * POSITION_BYTES

    def limit(total: int, **arguments: Any) -> int:
        monkeypatch.setattr(memory_plan, "_vllm_memory", lambda: (total, total))
        return limit_of(weights, vllm_config(gpu_memory_utilization=1.0, **arguments), engine=VLLM)

    with caplog.at_level(logging.INFO):
        assert limit(needed + VLLM_WORKING_BYTES) == limit(needed) == 1_000
    assert [each.levelname for each in records_of(caplog, PLAN)] == ["INFO", "WARNING"]
    with pytest.raises(InvalidArgument, match="context_limit 1000 does not fit on cuda"):
        limit(needed - 1)
    # Keys and values of a byte each take half.
    assert limit(4100 + 500 * POSITION_BYTES, kv_cache_dtype="fp8_e4m3") == 1_000
    # Room that is set is not counted, and what moves memory elsewhere is not planned.
    assert limit(10**12, kv_cache_memory_bytes=1_000 * POSITION_BYTES) == 1_000
    with pytest.raises(InvalidArgument, match="context_limit 1000 does not fit on cuda"):
        limit(10**12, kv_cache_memory_bytes=1_000 * POSITION_BYTES - 1)
    caplog.clear()
    for arguments in ({"cpu_offload_gb": 4}, {"pipeline_parallel_size": 2}):
        assert limit(needed - 1, **arguments) == 1_000
    assert [each.levelname for each in records_of(caplog, PLAN)] == ["WARNING"] * 2


def test_thinker_is_planned_without_the_tower_that_it_skips(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = {"thinker.a": torch.zeros(1050), "thinker.visual.b": torch.zeros(10_000)}
    save_file(tensors, tmp_path / "model.safetensors")
    with_free(monkeypatch, WORKING_BYTES + 2 * 1050 + 16 * 1_024 * (POSITION_BYTES + 2 * 64))
    text = Qwen3OmniMoeConfig().thinker_config.text_config
    text.num_hidden_layers, text.num_key_value_heads, text.head_dim = 4, 2, 16
    text.hidden_size, text.max_position_embeddings = 64, 65_536
    config = StageConfig(device="cuda")

    def limit(*skip: str) -> int:
        stored = StoredPart(Weights(tmp_path), "thinker.", skip)
        return planned_limit(decoder_memory("thinker", config, text, stored, row=64))

    assert limit("thinker.visual.") == 1_024
    assert limit() < 1_024


def test_vllm_is_planned_without_a_context_of_this_process(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    def initialised(device: object) -> tuple[int, int]:
        raise AssertionError("CUDA is initialised")

    total = 10 * VLLM_WORKING_BYTES
    monkeypatch.setattr(torch.cuda, "mem_get_info", initialised)
    monkeypatch.setattr(memory_plan, "_vllm_memory", lambda: (total, total))
    config = StageConfig(
        device="cuda:1", engine="vllm", engine_args={"gpu_memory_utilization": 0.5}
    )
    rest = total // 2 - VLLM_WORKING_BYTES - 4100
    limit = limit_of(weights, config, most=1 << 30, engine=VLLM)
    assert limit == rest // POSITION_BYTES // 64 * 64


# -- the chart's presets -------------------------------------------------------------------------


@cache
def test_decoders_without_positions_tell_their_plan(
    weights: Weights, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    taken, described = 4 * 1057, []

    def check(device: str, streams: int = 0) -> None:
        def describe(_: Path, config: StageConfig) -> StageMemory:
            described.append(device)
            parts = StoredPart(weights, "talker."), StoredPart(weights, "thinker.")
            return StageMemory("code2wav", config, parts, "float32", shared=streams)

        check_room(describe, weights.folder, StageConfig(device=device))

    check("cpu", 1 << 60)
    assert not lines_of(caplog, PLAN)
    assert not described, "load reads the files"
    with_free(monkeypatch, taken + 2_000_000_000 + WORKING_BYTES)
    check("cuda", 2_000_000_000)
    with_free(monkeypatch, taken)
    check("cuda")
    assert [each.levelname for each in records_of(caplog, PLAN)] == ["INFO", "WARNING"]
    assert lines_of(caplog, PLAN)[0] == (
        "code2wav: memory plan: weights: 0.00 GB, stream cache: 2.00 GB, "
        "working memory: 1.07 GB, available: 3.07 GB"
    )
    assert "cache" not in lines_of(caplog, PLAN)[1]


@pytest.mark.parametrize(
    ("spare", "streams", "field", "remedy"),
    [
        (
            99,
            100,
            "memory.flow_cache_bytes",
            "reduce memory.flow_cache_bytes to at most 99, or free",
        ),
        (-1, 100, "device", "; free"),
        (-1, 0, "device", "; free"),
    ],
)
def test_decoders_that_do_not_fit_are_refused_before_they_load(
    spare: int,
    streams: int,
    field: str,
    remedy: str,
    weights: Weights,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_free(monkeypatch, 2 * 1050 + spare)
    config = StageConfig(device="cuda", dtype="bfloat16")
    stored = (StoredPart(weights, "talker."),)
    memory = StageMemory("code2wav", config, stored, "bfloat16", shared=streams)
    with pytest.raises(InvalidArgument) as refused:
        check_room(lambda *_: memory, weights.folder, config)
    assert refused.value.field == field
    assert remedy in refused.value.message


@pytest.mark.parametrize(("build", "load"), [
    (qwen3_omni_checkpoint.build_tiny_checkpoint, qwen3_omni_code2wav.load),
    (qwen2_5_omni_checkpoint.build_tiny_checkpoint, token2wav.load),
    (qwen3_tts_checkpoint.build_tiny_tts, qwen3_tts_code2wav.load),
    (cosyvoice3_checkpoint.build_tiny_cosyvoice, cosyvoice3_code2wav.load),
    (mimo_checkpoint.build_nested_tiny_mimo, mimo_code2wav.load),
    (ming_tts_checkpoint.build_tiny_ming, ming_tts_code2wav.load),
], ids=lambda each: each.__module__.split(".")[-2])  # fmt: skip
def test_every_audio_decoder_checks_its_room_before_it_loads(
    build: Callable[[Path], object],
    load: Callable[[Path, StageConfig], object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    build(tmp_path / "tiny")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(memory_plan, "_memory", lambda device: (0, 0))
    with pytest.raises(InvalidArgument, match="does not fit on cuda:0: weights"):
        load(tmp_path / "tiny", StageConfig(device="cuda:0"))


def released(checkpoint: str, role: str) -> tuple[int, Cached | None]:
    """How many numbers a released checkpoint has for a role, and what its positions take.

    Counted in transformers' modules. Of Qwen3-TTS, which transformers lacks, in ours, and of
    CosyVoice3 in its files.
    """
    if checkpoint == "Qwen3-TTS-12Hz-1.7B-CustomVoice":
        return TTS[role]
    if checkpoint == "Ming-omni-tts-0.5B":
        return MING[role]
    if checkpoint == "Fun-CosyVoice3-0.5B-2512":
        return _cosyvoice3(role)
    if checkpoint == "MiMo-Audio-7B-Instruct":
        return _mimo(role)
    with torch.device("meta"):
        if checkpoint.startswith("Qwen3-Omni"):
            return _omni3(role)
        return _omni25(role, checkpoint[-2:].lower())


def _numbers(module: torch.nn.Module) -> int:
    return sum(each.numel() for each in module.parameters())


def _omni3(role: str) -> tuple[int, Cached | None]:
    config = omni3_config()
    thinker = config.thinker_config
    if role == "thinker":
        text = thinker.text_config
        module: torch.nn.Module = Qwen3OmniMoeThinkerForConditionalGeneration(thinker)
        return _numbers(module), Cached.of(text, row=text.hidden_size)
    if role == "talker":
        text = config.talker_config.text_config
        module = Qwen3OmniMoeTalkerForConditionalGeneration(config.talker_config)
        table = thinker.text_config.vocab_size * text.hidden_size
        return _numbers(module) + table, Cached.of(text)
    return _numbers(Qwen3OmniMoeCode2Wav(config.code2wav_config)), None


TTS = {
    "talker": (1_920_000_000, Cached(layers=28, key_heads=8, head_dim=128)),
    "code2wav": (125_000_000, None),
}
"""Of the 1.7B: 3.84 GB of `model.safetensors`, and the decoder's half of its codec."""


MING = {
    "talker": (1_500_000_000, Cached(layers=24, key_heads=2, head_dim=64)),
    "code2wav": (300_000_000, None),
}
"""Bounds: another server reports 3.8 GB in use for all of it. The layers are Qwen2 0.5B's."""


def _cosyvoice3(role: str) -> tuple[int, Cached | None]:
    shape = CosyVoiceShape(
        hidden=896,
        intermediate=4864,
        layers=24,
        heads=14,
        kv_heads=2,
        look_ahead_channels=1024,
        flow_width=1024,
        flow_layers=22,
        flow_heads=16,
        flow_head_dim=64,
        vocoder_channels=512,
        pitch_channels=512,
    )
    if role == "talker":
        shapes = talker_shapes(shape, 151_936)
        del shapes["llm.model.lm_head.weight"]
        cached = Cached(shape.layers, shape.kv_heads, shape.hidden // shape.heads)
        return sum(map(math.prod, shapes.values())), cached
    shapes = flow_shapes(shape) | vocoder_shapes(shape)
    return sum(map(math.prod, shapes.values())), None


def test_sizes_of_cosyvoice3_are_those_of_its_files() -> None:
    """1.33 GB of `flow.pt` and 83 MB of `hift.pt`, in float32; 2.0 GB of `llm.pt` with the head
    that writes text, which no stage loads."""
    code2wav, _ = _cosyvoice3("code2wav")
    talker, _ = _cosyvoice3("talker")
    assert round(4 * code2wav / 1e9, 2) == 1.41
    assert 1.98e9 < 4 * talker < 2.06e9


def _mimo(role: str) -> tuple[int, Cached | None]:
    shape = MimoShape(
        hidden=4096,
        intermediate=11008,
        layers=36,
        heads=32,
        kv_heads=8,
        head_dim=128,
        local_heads=64,
        local_hidden=1024,
        local_intermediate=4096,
        local_layers=16,
        group_hidden=1024,
        group_layers=6,
        codec_hidden=1280,
        codec_heads=20,
        codec_intermediate=5120,
        encoder_layers=32,
        decoder_layers=32,
        vocoder_hidden=256,
        vocoder_heads=16,
        vocoder_intermediate=1024,
        vocoder_layers=16,
    )
    codec = {name: math.prod(size) for name, size in codec_shapes(shape).items()}
    if role == "talker":
        numbers = sum(map(math.prod, model_shapes(shape, 151_680).values()))
        encoder = sum(size for name, size in codec.items() if name.startswith("encoder."))
        return numbers + encoder, Cached(shape.layers, shape.kv_heads, shape.head_dim)
    return sum(size for name, size in codec.items() if name.startswith("decoder.")), None


def _omni25(role: str, size: str) -> tuple[int, Cached | None]:
    config = omni25_config(size)
    if role == "thinker":
        text = config.thinker_config.text_config
        module: torch.nn.Module = Qwen2_5OmniThinkerForConditionalGeneration(config.thinker_config)
        return _numbers(module), Cached.of(text, row=text.hidden_size)
    if role == "talker":
        module = Qwen2_5OmniTalkerForConditionalGeneration(config.talker_config)
        return _numbers(module), Cached.of(config.talker_config)
    return _numbers(Qwen2_5OmniToken2WavModel(config.token2wav_config)), None


def presets() -> list[str]:
    """Names of the chart's example values that ask for NVIDIA GPUs."""
    told = {each.name: yaml.safe_load(each.read_text()) or {} for each in CHART.glob("*.yaml")}
    # One shows every key, for no checkpoint and no card.
    told.pop("everything-values.yaml")
    kinds = {name: each.get("stageDefaults", {}).get("accelerator") for name, each in told.items()}
    return sorted(name for name, kind in kinds.items() if kind == {"type": "nvidia"})


def cards_of(values: Mapping[str, Any]) -> list[list[str]]:
    """The roles on each GPU."""
    pipelines = yaml.safe_load((CHART.parent / "pipelines.yaml").read_text())
    roles = list(pipelines["stages"][values["model"]["pipeline"]])
    shared = [
        each["stages"]
        for each in values.get("colocated", {}).values()
        if each.get("accelerators") in ("shared", "claimed")
    ]
    alone = [[role] for role in roles if not any(role in each for each in shared)]
    return [*shared, *alone]


def taken(values: Mapping[str, Any], role: str, card: int) -> int:
    """What a stage takes of a card, all slots at their longest. Fails where that is not planned."""
    told = dict(values.get("stageDefaults", {}).get("config", {}))
    told |= values.get("stages", {}).get(role, {}).get("config", {})
    config = StageConfig(**{"device": "cuda", **told})
    numbers, cached = released(values["model"]["directory"], role)
    if cached is None:
        streams = (
            config.memory.flow_cache_bytes if values["model"]["pipeline"] == "cosyvoice3" else 0
        )
        return 4 * numbers + streams + WORKING_BYTES + CONTEXT_BYTES
    engine = VLLM if config.engine == "vllm" else TORCH
    plan: MemoryPlan = plan_stage(
        config, numbers, 2 * numbers, cached, free=card, total=card, engine=engine
    )
    assert isinstance(config.context_limit, int), f"{role}: an example names its context_limit"
    assert config.context_limit >= 4096, role
    assert plan.fits(config.context_limit), f"{role}: {plan.describe(config.context_limit)}"
    if engine == VLLM:
        return plan.room + CONTEXT_BYTES
    return plan.weights + plan.cache(config.context_limit) + plan.working + CONTEXT_BYTES


CARDS = {
    "cosyvoice3-values.yaml": 24,
    "ming-tts-values.yaml": 24,
    "one-h200-values.yaml": 141,
    "qwen3-tts-values.yaml": 24,
    "qwen2.5-omni-3b-values.yaml": 24,
    "qwen2.5-omni-values.yaml": 48,
}
"""GB of the GPUs that an example is for; 80 where it is not here."""


@pytest.mark.parametrize("name", presets())
def test_every_nvidia_example_fits_its_cards(name: str) -> None:
    values = yaml.safe_load((CHART / name).read_text())
    card = CARDS.get(name, 80) * 10**9
    for roles in cards_of(values):
        total = sum(taken(values, role, card) for role in roles)
        assert total <= card, f"{roles}: {total / 1e9:.1f} of {card / 1e9:.0f} GB"
