"""Warm up the talker."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ, WHOLE_TEXT
from antiphon.runtime.engine import InputChunk
from antiphon.values.conversation import Conversation, ConversationMessage, TextPart, to_tensors
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.lm.warm_up import speak
from antiphon_services.qwen3_tts.talker.engine import CODES, TtsTalkerEngine
from antiphon_services.qwen3_tts.talker.tts_segment import INPUT
from antiphon_services.qwen3_tts.talker.voice_options import CheckpointKind

WORD = "Hello "
SOUND_S = 0.5
# Rows other than the text, including those of a recording.
OTHER_ROWS = 32


def warm_up(
    engine: TtsTalkerEngine,
    kind: CheckpointKind,
    sampling: Sampling,
    slots: int,
    context_limit: int,
) -> None:
    """Warm up the engine; see `antiphon_services.lm.warm_up`. Raises `Internal` if it emits no
    codes."""
    options: dict[str, OptionValue] = {"text_mode": WHOLE_TEXT}
    if kind.clones:
        sound = np.zeros(round(SOUND_S * SAMPLE_RATE_HZ), np.float32)
        options |= {"reference_audio": sound, "reference_text": WORD}
    # An id stands for at least one character.
    room = (context_limit - OTHER_ROWS) // len(WORD)
    speak(engine, CODES, sampling, slots, room, _make_input, options)


def _make_input(rows: int) -> Iterator[InputChunk]:
    """Yield a text of about `rows` ids."""
    message = ConversationMessage("user", (TextPart(WORD * rows),))
    yield InputChunk(INPUT, 0, to_tensors(Conversation((message,))), True, FinishReason.STOP)
