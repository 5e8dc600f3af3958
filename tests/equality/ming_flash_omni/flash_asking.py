"""Asks as the vendor's thinker was asked."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image

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
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from tests.equality.ming_flash_omni.flash_cases import AUDIO, TEXT, Case, images, recordings


def conversation_of(case: Case) -> Conversation:
    """The messages of a case."""
    heard, seen, messages = recordings(), images(), list[ConversationMessage]()
    sounds: list[npt.NDArray[np.float32]] = []
    pictures: list[npt.NDArray[np.uint8]] = []
    if case.system:
        messages.append(ConversationMessage("system", (TextPart(case.system),)))
    for turn in case.turns:
        parts: list[Part] = []
        for kind, name in turn.parts:
            if kind == TEXT:
                parts.append(TextPart(name))
            elif kind == AUDIO:
                parts.append(AudioPart(len(sounds)))
                sounds.append(heard[name])
            else:
                parts.append(ImagePart(len(pictures)))
                pictures.append(png(seen[name]))
        messages.append(ConversationMessage("user", tuple(parts)))
        if turn.answer:
            messages.append(ConversationMessage("assistant", (TextPart(turn.answer),)))
    return Conversation(tuple(messages), tuple(sounds), tuple(pictures))


def png(pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The content of a file with these pixels."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return np.frombuffer(file.getvalue(), np.uint8)


def asked(case: Case) -> tuple[SegmentSettings, Sequence[InputChunk]]:
    """A case as the thinker gets it."""
    sampling = Sampling(0.0, 0, 1.0, 1.0, seed=0, max_tokens=case.most)
    settings = SegmentSettings("", sampling, frozenset({"text"}))
    tensors = to_tensors(conversation_of(case))
    return settings, [InputChunk("input", 0, tensors, True, FinishReason.STOP)]
