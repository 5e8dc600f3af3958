"""What the talker is warmed up with."""

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
# Rows beside the text, a recording's included.
OTHER_ROWS = 32


def warm_up(
    engine: TtsTalkerEngine,
    kind: CheckpointKind,
    sampling: Sampling,
    slots: int,
    context_limit: int,
) -> None:
    """See `antiphon_services.lm.warm_up`. Raises `Internal` if the model gives no codes."""
    options: dict[str, OptionValue] = {"text_mode": WHOLE_TEXT}
    if kind.clones:
        sound = np.zeros(round(SOUND_S * SAMPLE_RATE_HZ), np.float32)
        options |= {"reference_audio": sound, "reference_text": WORD}
    # However little of the word an id stands for.
    room = (context_limit - OTHER_ROWS) // len(WORD)
    speak(engine, CODES, sampling, slots, room, _make_input, options)


def _make_input(rows: int) -> Iterator[InputChunk]:
    """A text of about so many ids."""
    message = ConversationMessage("user", (TextPart(WORD * rows),))
    yield InputChunk(INPUT, 0, to_tensors(Conversation((message,))), True, FinishReason.STOP)
