"""Asks as the vendor's code was asked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from antiphon.pipelines.covo_audio import CODES, INPUT, TEXT
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    Part,
    TextPart,
    to_tensors,
)
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from tests.equality.covo_audio.covo_cases import Case, clips

PENALTY = 1.05


def conversation_of(case: Case) -> Conversation:
    """The messages of a case."""
    heard, messages = clips(), list[ConversationMessage]()
    recordings: list[npt.NDArray[np.float32]] = []
    if case.system:
        messages.append(ConversationMessage("system", (TextPart(case.system),)))
    for turn in case.turns:
        parts: list[Part] = []
        if turn.clip:
            parts.append(AudioPart(len(recordings)))
            recordings.append(heard[turn.clip])
        if turn.text:
            parts.append(TextPart(turn.text))
        messages.append(ConversationMessage("user", tuple(parts)))
        if turn.answer:
            messages.append(ConversationMessage("assistant", (TextPart(turn.answer),)))
    return Conversation(tuple(messages), tuple(recordings))


def outputs_of(case: Case) -> frozenset[str]:
    """The edges that the answer leaves on."""
    return frozenset({TEXT, CODES} if case.spoken else {TEXT})


def asked(
    case: Case, outputs: frozenset[str] | None = None
) -> tuple[SegmentSettings, Sequence[InputChunk]]:
    """A case as the thinker gets it."""
    sampling = Sampling(0.0, 0, 1.0, PENALTY, seed=0, max_tokens=case.most)
    settings = SegmentSettings("", sampling, outputs or outputs_of(case))
    tensors = to_tensors(conversation_of(case))
    return settings, [InputChunk(INPUT, 0, tensors, True, FinishReason.STOP)]
