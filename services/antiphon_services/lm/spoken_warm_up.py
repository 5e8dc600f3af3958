"""Warm-up input for models that speak text."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from antiphon.runtime.engine import Engine, InputChunk
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.lm.warm_up import NO_OPTIONS, speak

WORD = "Hello "
SOUND_S = 0.5


def speak_text(
    engine: Engine,
    text_edge: str,
    outputs: str | tuple[str, ...],
    sampling: Sampling,
    slots: int,
    room: int,
    options: Mapping[str, OptionValue] = NO_OPTIONS,
) -> None:
    """Call `speak` with a conversation on `text_edge` that consists of a single user message.

    The text can take up to `room` positions. Raises `Internal` if the model generates no output.
    """
    speak(
        engine,
        outputs,
        sampling,
        slots,
        words_in(room),
        lambda words: [text_chunk(text_edge, WORD * words)],
        options,
    )


def words_in(room: int) -> int:
    """Return the number of words that fit into `room` positions, assuming that each ID represents
    at least one character.
    """
    return room // len(WORD)


def text_chunk(edge: str, text: str) -> InputChunk:
    """Return a complete input that consists of a conversation with one user message."""
    message = ConversationMessage("user", (TextPart(text),))
    return InputChunk(edge, 0, to_tensors(Conversation((message,))), True, FinishReason.STOP)


def reference_options(sample_rate_hz: int) -> dict[str, OptionValue]:
    """Return the options for a cloned voice: a short period of silence and its transcript."""
    sound = np.zeros(round(SOUND_S * sample_rate_hz), np.float32)
    return {"reference_audio": sound, "reference_text": WORD}
