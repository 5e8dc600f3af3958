"""What attention costs a GPU's host: layouts of calls that it plans for, and masks that it copies.

On a GPU torch may plan each new layout of an attention call for tens of milliseconds, and it
converts or copies a mask that its kernels do not take as it is, in every layer.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    Qwen2_5OmniTalkerForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen3OmniMoeTalkerForConditionalGeneration,
    Qwen3OmniMoeThinkerForConditionalGeneration,
)
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import Qwen2_5OmniToken2WavDiTModel
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines import qwen2_5_omni, qwen3_omni
from antiphon.sampling import Sampling
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.graphs import Bucketing, Eager
from antiphon_services.lm.readback import Readback
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_services.qwen2_5_omni.talker.rows import TextRow
from antiphon_services.qwen2_5_omni.thinker.towers import Omni25Towers
from antiphon_services.qwen2_5_omni.token2wav.flow import Flow
from antiphon_services.qwen2_5_omni.token2wav.utterance import Utterance
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_services.qwen3_omni.thinker.towers import Omni3Towers
from antiphon_services.qwen3_tts.code2wav import module as tts_codec
from antiphon_services.qwen3_tts.talker.module import TalkerModule
from antiphon_services.qwen3_tts.talker.prompt import SpeechIds
from antiphon_services.qwen3_tts.talker.talker import TtsTalker, TtsTurn
from antiphon_services.thinker.model import ThinkerFeed, ThinkerModel
from antiphon_services.vllm import environment
from antiphon_services.vocoder.stream import StreamDecoder, StreamPiece
from antiphon_testkit.late_copies import late_to_host
from antiphon_testkit.launches import Launches, launches_on_meta, meta_as_a_gpu
from antiphon_testkit.qwen2_5_omni import tiny_config as omni25_config
from antiphon_testkit.qwen2_5_omni import tiny_tokenizer as omni25_tokenizer
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon_testkit.qwen3_omni import tiny_config as omni3_config
from antiphon_testkit.qwen3_omni import tiny_tokenizer as omni3_tokenizer
from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL
from antiphon_testkit.qwen3_tts import tiny_config as tts_config
from antiphon_testkit.qwen3_tts.tiny_shape import CUSTOM_VOICE

GROUPS = 4
PREDICTED = GROUPS - 1
"""Positions that a code predictor attends from, each with a layout of its own."""
# Few layers, which all make the same calls.
OMNI3 = replace(
    SMALL, layers=2, accept_layer=1, talker_layers=2, code_groups=GROUPS, predictor_layers=1
)
OMNI25 = TinyOmni25Shape(layers=2, talker_layers=2, flow_layers=2)
TTS = replace(CUSTOM_VOICE, layers=2, code_groups=GROUPS, predictor_layers=1)
DRAWN = Sampling(
    temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, seed=0, max_tokens=9
)
STEPS, SESSIONS, SLOTS, LIMIT = 64, 8, 16, 300
Step = Callable[[int, int], object]
"""One step of so many sessions, each of which is at a position of its own from this one on."""


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    with meta_as_a_gpu() as device:
        yield device


@pytest.fixture(scope="module")
def omni3(tmp_path_factory: pytest.TempPathFactory) -> Any:
    words = omni3_tokenizer.TOKENIZER.write(tmp_path_factory.mktemp("omni3"))
    return omni3_config.make_config(OMNI3, words)


@pytest.fixture(scope="module")
def omni25(tmp_path_factory: pytest.TempPathFactory) -> Any:
    words = omni25_tokenizer.TOKENIZER.write(tmp_path_factory.mktemp("omni25"))
    return omni25_config.make_config(OMNI25, words)


def thinker_step(thinker: ThinkerModel) -> Step:
    ids, kept = np.full(1, 30, np.int32), np.zeros(1, np.intp)
    thinker.cache.reserve(LIMIT)

    def step(sessions: int, start: int) -> object:
        feeds = [ThinkerFeed(at, start + at, ids, kept, sampled=True) for at in range(sessions)]
        return thinker.forward(feeds)

    return step


@pytest.fixture(scope="module")
def omni3_thinker(omni3: Any, device: torch.device) -> Step:
    with device:
        module = Qwen3OmniMoeThinkerForConditionalGeneration(omni3.thinker_config)
    special = qwen3_omni.SpecialIds.from_config(omni3.to_dict())
    with torch.no_grad():
        return thinker_step(
            ThinkerModel(
                module.to(torch.bfloat16),
                special=special,
                towers=Omni3Towers(),
                tapped_layer=1,
                slots=SLOTS,
                context_limit=LIMIT,
            )
        )


@pytest.fixture(scope="module")
def omni25_thinker(omni25: Any, device: torch.device) -> Step:
    with device:
        module = Qwen2_5OmniThinkerForConditionalGeneration(omni25.thinker_config)
    special = qwen2_5_omni.PlaceholderIds.from_config(omni25.to_dict())
    with torch.no_grad():
        return thinker_step(
            ThinkerModel(
                module.to(torch.bfloat16),
                special=special,
                towers=Omni25Towers(),
                tapped_layer=OMNI25.layers,
                with_words=True,
                slots=SLOTS,
                context_limit=LIMIT,
            )
        )


@pytest.fixture(scope="module")
def omni3_talker(omni3: Any, device: torch.device) -> Step:
    special = qwen3_omni.SpecialIds.from_config(omni3.to_dict())
    with device:
        module = Qwen3OmniMoeTalkerForConditionalGeneration(omni3.talker_config)
    talker = Talker(
        module.to(torch.bfloat16),
        torch.zeros(special.tts_eos + 1, OMNI3.hidden),
        special,
        code_entries=OMNI3.talker_vocabulary,
        context_limit=LIMIT,
        slots=SLOTS,
        readback=Readback(late_to_host()),
    )

    def step(sessions: int, start: int) -> object:
        draws = [
            FrameDraw(at, start + at, 30, replace(DRAWN, seed=at), 3) for at in range(sessions)
        ]
        return talker.step([], draws)

    return step


@pytest.fixture(scope="module")
def omni25_talker(omni25: Any, device: torch.device) -> Step:
    told = omni25.to_dict()
    with device:
        module = Qwen2_5OmniTalkerForConditionalGeneration(omni25.talker_config)
        words = torch.zeros(1000, OMNI25.hidden, dtype=torch.bfloat16)
    talker = CodecTalker(
        module.to(torch.bfloat16),
        words,
        TalkerIds.from_config(told),
        qwen2_5_omni.PlaceholderIds.from_config(told),
        {"Ethan": 8},
        context_limit=LIMIT,
        slots=SLOTS,
        readback=Readback(late_to_host()),
    )

    def step(sessions: int, start: int) -> object:
        return talker.step(
            [],
            [
                FrameDraw(at, start + at, TextRow.PAD, replace(DRAWN, seed=at), 3)
                for at in range(sessions)
            ],
        )

    return step


@pytest.fixture(scope="module")
def tts_talker(device: torch.device) -> Step:
    names = ("assistant", "<|im_end|>", "<|im_start|>", "<tts_text_bos>", "<tts_text_eod>")
    ids = {name: at for at, name in enumerate((*names, "<tts_pad>"))}
    config = tts_config.make_config(TTS, ids, LIMIT)
    with device:
        module = TalkerModule(config["talker_config"])
    talker = TtsTalker(
        module.to(torch.bfloat16),
        SpeechIds.from_config(config),
        DRAWN,
        code_entries=TTS.codebook_size,
        context_limit=LIMIT,
        slots=SLOTS,
        readback=Readback(late_to_host()),
    )

    def step(sessions: int, start: int) -> object:
        draws = [
            FrameDraw(at, start + at, 7, replace(DRAWN, seed=at), at) for at in range(sessions)
        ]
        return talker.step([TtsTurn((), (), each) for each in draws])

    return step


DECODERS = ("omni3_thinker", "omni25_thinker", "omni3_talker", "omni25_talker", "tts_talker")


def watch(step: Step, sessions: int) -> Launches:
    with launches_on_meta() as launches:
        for turn in range(STEPS):
            step(sessions, 100 + turn)
    return launches


@pytest.mark.parametrize("decoder", DECODERS)
def test_sessions_that_decode_ask_for_few_layouts_of_attention(
    decoder: str, request: pytest.FixtureRequest
) -> None:
    launches = watch(request.getfixturevalue(decoder), SESSIONS)
    talks = decoder in ("omni3_talker", "tts_talker")
    assert len(launches.attention) >= 2 * STEPS
    assert len(set(launches.attention)) <= 2 + PREDICTED * talks
    assert launches.misfits == []


def test_vocoders_hand_masks_over_as_kernels_take_them(omni3: Any, device: torch.device) -> None:
    with device:
        config = tts_codec.CodecConfig.from_dict(
            tts_config.make_codec_config(TTS)["decoder_config"]
        )
        vocoders = (
            vocoder_of(Qwen3OmniMoeCode2Wav(omni3.code2wav_config)),
            tts_codec.vocoder_of(tts_codec.CodecDecoder(config)),
        )
    for vocoder in vocoders:
        decoder = StreamDecoder(vocoder)
        states = decoder.new_states(4)
        for frames in (1, 4, 5):
            codes = np.zeros((frames, decoder.groups), np.uint16)
            pieces = [StreamPiece(slot, codes) for slot in range(4)]
            with launches_on_meta() as launches:
                type(decoder).advance.__wrapped__(decoder, states, pieces)  # type: ignore[attr-defined]
            assert launches.attention
            assert launches.misfits == []


@pytest.mark.parametrize("bucketing", [None, Eager], ids=["eager", "replayed"])
def test_flow_hands_masks_over_as_kernels_take_them(
    bucketing: Bucketing | None, omni25: Any, device: torch.device
) -> None:
    with device:
        module = Qwen2_5OmniToken2WavDiTModel(omni25.token2wav_config.dit_config)
        told = torch.zeros(1, OMNI25.speaker_width), torch.zeros(1, 60, 80)
    flow = Flow(module, bucketing)
    voice = flow.voice(*told)
    made = [Utterance(flow, voice, seed=seed, held_blocks=2) for seed in range(3)]
    with launches_on_meta() as launches:
        for at, each in enumerate(made):
            each.add(torch.zeros(50 - at, dtype=torch.int64), finished=True)
        parts = [part for each in made if (part := each.next_part()) is not None]
        work = flow.run(parts)
        # A replayed call does all layers at once.
        for _ in range(OMNI25.flow_layers if bucketing is None else 1):
            next(work)
    assert sum(len(call) == 4 for call in launches.attention) >= OMNI25.flow_layers
    assert launches.misfits == []


def test_stage_never_asks_cudnn_for_attention(tmp_path: Path) -> None:
    """In a process of its own: the switch is the process's, and torch's default is on."""
    build_tiny_checkpoint(tmp_path)
    code = f"""
from pathlib import Path
import torch
from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_services.loading import load_stage
assert torch.backends.cuda.cudnn_sdp_enabled()
load_stage(PIPELINE, "code2wav", Path({str(tmp_path)!r}), StageConfig())
assert not torch.backends.cuda.cudnn_sdp_enabled()
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_vllm_puts_cudnn_last_in_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_installed", lambda: True)
    set_now: dict[str, str] = {}
    environment.prepare(StageConfig(device="cuda"), {}, set_now)
    assert set_now["TORCH_CUDNN_SDPA_DEPRIORITIZED"] == "1"
    assert "TORCH_CUDNN_SDPA_DEPRIORITIZED" not in os.environ
