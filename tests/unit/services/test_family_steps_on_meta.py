"""What a step of Qwen2.5-Omni's and Qwen3-TTS's engines asks its device for at the released
depths; bounds that only fall."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen2_5_omni.configuration_qwen2_5_omni import Qwen2_5OmniBigVGANConfig
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    Qwen2_5OmniTalkerForConditionalGeneration,
    Qwen2_5OmniThinkerForConditionalGeneration,
    Qwen2_5OmniToken2WavBigVGANModel,
    Qwen2_5OmniToken2WavDiTModel,
)

from antiphon.pipelines.qwen2_5_omni import PlaceholderIds
from antiphon.sampling import Sampling
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.readback import Readback
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_services.qwen2_5_omni.talker.rows import TextRow
from antiphon_services.qwen2_5_omni.thinker.towers import Omni25Towers
from antiphon_services.qwen2_5_omni.token2wav.flow import Flow
from antiphon_services.qwen2_5_omni.token2wav.utterance import Utterance
from antiphon_services.qwen2_5_omni.token2wav.vocoder import MelVocoder
from antiphon_services.qwen3_tts.code2wav.module import CodecConfig, CodecDecoder, vocoder_of
from antiphon_services.qwen3_tts.talker.module import TalkerModule
from antiphon_services.qwen3_tts.talker.prompt import SpeechIds
from antiphon_services.qwen3_tts.talker.talker import TtsTalker, TtsTurn
from antiphon_services.thinker.model import ThinkerFeed, ThinkerModel
from antiphon_services.vocoder.stream import StreamDecoder, StreamPiece
from antiphon_testkit.late_copies import late_to_host
from antiphon_testkit.launches import launches_on_meta, meta_as_a_gpu
from antiphon_testkit.qwen2_5_omni import tiny_config as omni25_config
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon_testkit.qwen2_5_omni.tiny_tokenizer import TOKENIZER
from antiphon_testkit.qwen3_tts import tiny_config as tts_config
from antiphon_testkit.qwen3_tts.tiny_shape import CUSTOM_VOICE

# The numbers of layers and groups are those of the released 7B and 1.7B; widths do not count.
OMNI = TinyOmni25Shape(layers=28, talker_layers=24, flow_layers=22)
TTS = replace(
    CUSTOM_VOICE, layers=28, code_groups=16, predictor_layers=5, decoder_layers=8, decoder_window=72
)
DRAWN = Sampling(
    temperature=0.9, top_k=40, top_p=0.8, repetition_penalty=1.05, seed=0, max_tokens=9
)


@pytest.fixture(scope="module")
def omni(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return omni25_config.make_config(OMNI, TOKENIZER.write(tmp_path_factory.mktemp("words")))


@pytest.fixture(scope="module")
def device() -> Iterator[torch.device]:
    with meta_as_a_gpu() as device:
        yield device


@pytest.fixture(scope="module")
def thinker(omni: Any, device: torch.device) -> ThinkerModel:
    with device:
        module = Qwen2_5OmniThinkerForConditionalGeneration(omni.thinker_config)
    thinker = ThinkerModel(
        module.to(torch.bfloat16),
        special=PlaceholderIds.from_config(omni.to_dict()),
        towers=Omni25Towers(),
        tapped_layer=OMNI.layers,
        with_words=True,
        slots=16,
        context_limit=300,
    )
    with launches_on_meta():  # the first step makes the slots
        thinker.forward(thinker_feeds(1))
    return thinker


def thinker_feeds(sessions: int) -> list[ThinkerFeed]:
    ids, kept = np.full(1, 30, np.int32), np.zeros(1, np.intp)
    return [ThinkerFeed(at, 20 + at, ids, kept, sampled=True) for at in range(sessions)]


@pytest.mark.parametrize(("sessions", "most"), [(1, 488), (16, 492)])
def test_omni25_thinker_waits_for_nothing(thinker: ThinkerModel, sessions: int, most: int) -> None:
    with launches_on_meta() as launches:
        thinker.forward(thinker_feeds(sessions))
    assert launches.waits == launches.on_host == []
    assert 10 * OMNI.layers < launches.total <= most, launches.counts


@pytest.fixture(scope="module")
def codec_talker(omni: Any, device: torch.device) -> CodecTalker:
    told = omni.to_dict()
    with device:
        module = Qwen2_5OmniTalkerForConditionalGeneration(omni.talker_config)
        words = torch.zeros(1000, OMNI.hidden, dtype=torch.bfloat16)
    return CodecTalker(
        module.to(torch.bfloat16),
        words,
        TalkerIds.from_config(told),
        PlaceholderIds.from_config(told),
        {"Ethan": 8},
        context_limit=300,
        slots=16,
        readback=Readback(late_to_host()),
    )


@pytest.mark.parametrize(("sessions", "most"), [(4, 466), (16, 466)])
def test_omni25_talker_waits_for_nothing_when_it_draws(
    codec_talker: CodecTalker, sessions: int, most: int
) -> None:
    draws = [
        FrameDraw(slot, 40 + slot, TextRow.PAD, replace(DRAWN, seed=slot), 3)
        for slot in range(sessions)
    ]
    with launches_on_meta() as launches:
        codec_talker.step([], draws)
    assert launches.waits == launches.on_host == []
    assert 10 * OMNI.talker_layers < launches.total <= most, launches.counts


@pytest.mark.parametrize(("utterances", "most"), [(1, 356), (4, 386)])
def test_flow_waits_for_nothing_in_an_evaluation(
    omni: Any, device: torch.device, utterances: int, most: int
) -> None:
    with device:
        module = Qwen2_5OmniToken2WavDiTModel(omni.token2wav_config.dit_config)
        told = torch.zeros(1, OMNI.speaker_width), torch.zeros(1, 60, 80)
    flow = Flow(module)
    voice = flow.voice(*told)
    made = [Utterance(flow, voice, seed=seed, held_blocks=2) for seed in range(utterances)]
    with launches_on_meta() as launches:
        for at, each in enumerate(made):
            each.add(torch.zeros(50 - at, dtype=torch.int64), finished=True)
        parts = [part for each in made if (part := each.next_part()) is not None]
        work = flow.run(parts)
        for _ in range(OMNI.flow_layers):
            next(work)
    assert launches.waits == launches.on_host == []
    assert 10 * OMNI.flow_layers < launches.total <= most, launches.counts


@pytest.mark.parametrize(("mels", "most"), [(1, 1842), (4, 1845)])
def test_omni25_vocoder_waits_for_nothing(
    device: torch.device, mels: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its sizes are the released ones, which are transformers' defaults.
    with device:
        vocoder = MelVocoder(Qwen2_5OmniToken2WavBigVGANModel(Qwen2_5OmniBigVGANConfig()))
        pieces = [torch.zeros(50, 80) for _ in range(mels)]
    with launches_on_meta() as launches, monkeypatch.context() as patch:
        # With a device it waits, out of sight of any mode.
        patch.delattr(torch, "tensor")
        calls = len(list(vocoder.decode(pieces)))
    assert calls == 1
    assert launches.waits == launches.on_host == []
    assert 100 < launches.total <= most, launches.counts


@pytest.fixture(scope="module")
def tts_talker(device: torch.device) -> TtsTalker:
    names = ("assistant", "<|im_end|>", "<|im_start|>", "<tts_text_bos>", "<tts_text_eod>")
    ids = {name: at for at, name in enumerate((*names, "<tts_pad>"))}
    config = tts_config.make_config(TTS, ids, 300)
    with device:
        module = TalkerModule(config["talker_config"])
    return TtsTalker(
        module.to(torch.bfloat16),
        SpeechIds.from_config(config),
        DRAWN,
        code_entries=TTS.codebook_size,
        context_limit=300,
        slots=16,
        readback=Readback(late_to_host()),
    )


@pytest.mark.parametrize(("sessions", "most"), [(4, 2212), (16, 2212)])
def test_tts_talker_waits_for_nothing_when_it_draws(
    tts_talker: TtsTalker, sessions: int, most: int
) -> None:
    draws = [
        FrameDraw(slot, 40 + slot, 7 if slot else None, replace(DRAWN, seed=slot), slot)
        for slot in range(sessions)
    ]
    with launches_on_meta() as launches:
        tts_talker.step([TtsTurn((), (), each) for each in draws])
    assert launches.waits == launches.on_host == []
    assert 10 * (TTS.layers + 15 * TTS.predictor_layers) < launches.total <= most, launches.counts


@pytest.mark.parametrize(("sessions", "most"), [(1, 580), (16, 791)])
def test_tts_code2wav_waits_for_nothing(device: torch.device, sessions: int, most: int) -> None:
    with device:
        config = CodecConfig.from_dict(tts_config.make_codec_config(TTS)["decoder_config"])
        decoder = StreamDecoder(vocoder_of(CodecDecoder(config)))
    states = decoder.new_states(sessions)
    codes = np.zeros((4, decoder.groups), np.uint16)
    pieces = [StreamPiece(slot, codes[: 4 - slot % 2]) for slot in range(sessions)]
    with launches_on_meta() as launches:
        type(decoder).advance.__wrapped__(decoder, states, pieces)  # type: ignore[attr-defined]
    assert launches.waits == launches.on_host == []
    assert 100 < launches.total <= most, launches.counts
