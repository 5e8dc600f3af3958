"""Asks the thinker as the vendor's code was asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from antiphon.pipelines.dynin_omni import IMAGE_TOKENS, INPUT, TEXT, UNITS
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    ImagePart,
    Part,
    TextPart,
    to_tensors,
)
from antiphon.values.segment import FinishReason
from antiphon_services.dynin_omni.thinker.load import DEFAULT_SAMPLING
from tests.equality.dynin_omni.dynin_cases import (
    CHANGED,
    HEARD,
    IMAGE_TASKS,
    SHOWN,
    SPEECH_TASKS,
    SPOKEN,
    TRANSCRIBED,
    DyninCase,
    picture,
    recording,
)


def edge_of(case: DyninCase) -> str:
    """The edge that the answer leaves on."""
    if case.kind in IMAGE_TASKS:
        return IMAGE_TOKENS
    return UNITS if case.kind in SPEECH_TASKS else TEXT


def masked_conversation(case: DyninCase) -> Conversation:
    """The messages of a case."""
    parts: list[Part] = []
    heard, shown = case.kind in (HEARD, TRANSCRIBED, SPOKEN), case.kind in (SHOWN, CHANGED)
    if heard:
        parts.append(AudioPart(0))
    if shown:
        parts.append(ImagePart(0))
    if case.text:
        parts.append(TextPart(case.text))
    return Conversation(
        (
            *(ConversationMessage(role, (TextPart(text),)) for role, text in case.turns),
            ConversationMessage("user", tuple(parts)),
        ),
        (recording(),) if heard else (),
        (np.frombuffer(picture(), np.uint8),) if shown else (),
    )


def masked_asked(
    case: DyninCase, outputs: frozenset[str] = frozenset()
) -> tuple[SegmentSettings, Sequence[InputChunk]]:
    """A case as the thinker gets it."""
    sampling = DEFAULT_SAMPLING.with_request(case.sampling)
    settings = SegmentSettings(
        "",
        replace(sampling, seed=case.key),
        outputs or frozenset({edge_of(case)}),
        case.options,
        asked=case.sampling,
    )
    tensors = to_tensors(masked_conversation(case))
    return settings, [InputChunk(INPUT, 0, tensors, True, FinishReason.STOP)]
