"""Creates functions that run a step of each model family's stages, with models from `models`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from antiphon.pipelines.cosyvoice3 import FRAMES_PER_CODE, MEL_BINS, SPEAKER_WIDTH
from antiphon.pipelines.mimo_audio import CODEBOOKS
from antiphon.values.sampling import Sampling
from antiphon_services.cosyvoice3.code2wav.flow import ClonedVoice, MelFlow
from antiphon_services.cosyvoice3.code2wav.vocoder import HarmonicVocoder
from antiphon_services.cosyvoice3.talker.speech_segment import DrawPlace
from antiphon_services.cosyvoice3.talker.talker import SpeechTalker
from antiphon_services.flow.block_cache import BlockCache, BlockCausalRows, BlockPages
from antiphon_services.flow.work import run_to_end
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.mimo_audio.code2wav.decoder import FrameCodecDecoder
from antiphon_services.mimo_audio.talker.dialogue_segment import PositionDraw
from antiphon_services.mimo_audio.talker.model import SpeechTextModel
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_services.qwen2_5_omni.talker.rows import TextRow
from antiphon_services.qwen2_5_omni.token2wav.flow import Flow
from antiphon_services.qwen2_5_omni.token2wav.utterance import Utterance
from antiphon_services.qwen2_5_omni.token2wav.vocoder import MelVocoder
from antiphon_services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_services.qwen3_tts.talker.talker import TtsTalker, TtsTurn
from antiphon_services.thinker.model import ThinkerFeed, ThinkerModel
from antiphon_services.vocoder.stream import StreamDecoder, StreamPiece
from benchmarks.operations import models
from benchmarks.operations.models import COSY_DRAWN, DRAWN, LIMIT

FRAMES_OF_A_PIECE = 4
MEL_FRAMES = 50
"""The number of mel frames in a vocoder call. It matches a block of CosyVoice3."""

Step = Callable[[int, int], Any]
"""Runs a step. The arguments are the number of sessions and the position of the first session."""

Text = TypeVar("Text")


def draws_of(
    sessions: int, position: int, text: Text, sampling: Sampling = DRAWN
) -> list[FrameDraw[Text]]:
    """Return a draw for each session. The position of each session is one higher than the previous
    one.
    """
    return [
        FrameDraw(slot, position + slot, text, replace(sampling, seed=slot), 3)
        for slot in range(sessions)
    ]


def omni3_talker_step(talker: Talker, sampling: Sampling = DEFAULT_SAMPLING) -> Step:
    """Return a step that generates a frame for every session."""
    return lambda sessions, position: talker.step([], draws_of(sessions, position, 7, sampling))


def omni25_talker_step(talker: CodecTalker, sampling: Sampling = DRAWN) -> Step:
    """Return a step that generates a code for every session."""
    return lambda sessions, position: talker.step(
        [], draws_of(sessions, position, TextRow.PAD, sampling)
    )


def tts_talker_step(talker: TtsTalker, sampling: Sampling = DRAWN) -> Step:
    """Return a step that generates a frame for every session."""
    return lambda sessions, position: talker.step(
        [TtsTurn((), (), each) for each in draws_of(sessions, position, 7, sampling)]
    )


def cosy_talker_step(talker: SpeechTalker, sampling: Sampling = COSY_DRAWN) -> Step:
    """Return a step that generates a code for every session, in the middle of an utterance."""
    place = DrawPlace(3, 3, early=False, continues=False)
    return lambda sessions, position: talker.step([], draws_of(sessions, position, place, sampling))


def mimo_talker_step(talker: SpeechTextModel, sampling: Sampling = DRAWN) -> Step:
    """Return a step that generates a position for every session.

    A position is a token and a group of frames. Only the device knows whether the group is needed.
    """
    place = PositionDraw(3, replace(sampling, top_k=0, repetition_penalty=1.0))
    return lambda sessions, position: talker.step([], draws_of(sessions, position, place, sampling))


def mimo_code2wav_step(decoder: FrameCodecDecoder) -> Step:
    """Return a step that decodes a window for every session, with one call per session."""
    codes = torch.zeros(MEL_FRAMES, len(CODEBOOKS), dtype=torch.int64, device="meta")
    return lambda sessions, position: [decoder.samples(codes) for _ in range(sessions)]


def thinker_step(thinker: ThinkerModel) -> Step:
    """Return a step that computes logits for every session."""
    ids, none = np.full(1, 30, np.int32), np.empty(0, np.intp)
    thinker.cache.reserve(LIMIT)
    return lambda sessions, position: thinker.forward(
        [ThinkerFeed(at, position + at, ids, none, sampled=True) for at in range(sessions)]
    )


def code2wav_step(decoder: StreamDecoder, slots: int = models.SLOTS) -> Step:
    """Return a step that decodes four frames of every session, or three of every other session."""
    states = decoder.new_states(slots)
    codes = np.zeros((FRAMES_OF_A_PIECE, decoder.groups), np.uint16)
    # Inference mode hides the parts of composite operations.
    advance = type(decoder).advance.__wrapped__  # type: ignore[attr-defined]
    return lambda sessions, position: advance(
        decoder,
        states,
        [StreamPiece(slot, codes[: len(codes) - slot % 2]) for slot in range(sessions)],
    )


def omni25_flow_step(flow: Flow, speaker_width: int, layers: int) -> Step:
    """Return a step that runs the first evaluation for every session.

    With graphs, all `layers` are run at once.
    """
    voice = flow.voice(
        torch.zeros(1, speaker_width, device="meta"), torch.zeros(1, 60, 80, device="meta")
    )

    def step(sessions: int, position: int) -> None:
        made = [Utterance(flow, voice, seed=seed, held_blocks=2) for seed in range(sessions)]
        for at, each in enumerate(made):
            each.add(torch.zeros(50 - at % 8, dtype=torch.int64), finished=True)
        parts = [part for each in made if (part := each.next_part()) is not None]
        work = flow.run(parts)
        for _ in range(layers):
            next(work)

    return step


def omni25_vocoder_step(vocoder: MelVocoder) -> Step:
    """Return a step that decodes a piece for every session in a single call."""
    piece = torch.zeros(MEL_FRAMES, 80, device="meta")
    return lambda sessions, position: list(vocoder.decode([piece] * sessions))


def cosy_flow_step(flow: MelFlow) -> Step:
    """Return a step that runs an evaluation for a block after a cached one, separately per
    session.
    """
    device, shape = flow.device, flow.block
    pages = BlockPages(shape, 2 * shape.page_bytes, device)
    cache = BlockCache(pages)
    known, stop = shape.frames // FRAMES_PER_CODE, 2 * shape.frames
    voice = ClonedVoice(
        torch.zeros(1, SPEAKER_WIDTH, device=device),
        torch.zeros(known, dtype=torch.int64, device=device),
        torch.zeros(shape.frames, MEL_BINS, device=device),
    )
    codes = torch.zeros(known + flow.look_ahead, dtype=torch.int64, device=device)
    first = BlockCausalRows(cache, shape.frames, keep=1)
    with torch.no_grad():
        run_to_end(flow.run_rows(voice, codes, first))
    first.commit()

    def step(sessions: int, position: int) -> None:
        for _ in range(sessions):
            work = flow.run_rows(voice, codes, BlockCausalRows(cache, stop, keep=1))
            for _ in range(shape.layers):
                next(work)

    return step


def cosy_vocoder_step(vocoder: HarmonicVocoder) -> Step:
    """Return a step that decodes the first block of a stream, with one call per session."""
    mel = torch.zeros(MEL_FRAMES, MEL_BINS, device="meta")

    def step(sessions: int, position: int) -> list[Tensor]:
        return [
            run_to_end(vocoder.decode(vocoder.open(), mel, finished=False)) for _ in range(sessions)
        ]

    return step


FAMILIES: dict[str, Callable[..., Step]] = {
    "Qwen3-Omni, talker": lambda device, **replayed: omni3_talker_step(
        models.omni3_talker(device, **replayed)
    ),
    "Qwen3-Omni, thinker": lambda device, **replayed: thinker_step(
        models.omni3_thinker(device, **replayed)
    ),
    "Qwen2.5-Omni, talker": lambda device, **replayed: omni25_talker_step(
        models.omni25_talker(device, **replayed)
    ),
    "Qwen2.5-Omni, thinker": lambda device, **replayed: thinker_step(
        models.omni25_thinker(device, **replayed)
    ),
    "Qwen3-TTS, talker": lambda device, **replayed: tts_talker_step(
        models.tts_talker(device, **replayed)
    ),
}
"""The steps of stages that support fused kernels. They accept the keyword arguments in
`models.Replayed`.
"""

UNFUSED: dict[str, Callable[[torch.device], Step]] = {
    "Qwen3-Omni, code2wav": lambda device: code2wav_step(models.omni3_code2wav(device)),
    "Qwen2.5-Omni, flow evaluation": lambda device: omni25_flow_step(
        models.omni25_flow(device), models.OMNI25.speaker_width, models.OMNI25.flow_layers
    ),
    "Qwen2.5-Omni, vocoder": lambda device: omni25_vocoder_step(models.omni25_vocoder(device)),
    "Qwen3-TTS, code2wav": lambda device: code2wav_step(models.tts_code2wav(device)),
    "CosyVoice3, talker": lambda device: cosy_talker_step(models.cosy_talker(device)),
    "MiMo-Audio, talker": lambda device: mimo_talker_step(models.mimo_talker(device)),
    "MiMo-Audio, code2wav": lambda device: mimo_code2wav_step(models.mimo_code2wav(device)),
    "CosyVoice3, flow evaluation": lambda device: cosy_flow_step(models.cosy_flow(device)),
    "CosyVoice3, vocoder": lambda device: cosy_vocoder_step(models.cosy_vocoder(device)),
}
"""The steps of stages that do not support `fused`."""
