"""Warms up the talker."""

from __future__ import annotations

from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ, WHOLE_TEXT
from antiphon.values.options import OptionValue
from antiphon.values.sampling import Sampling
from antiphon_services.lm.spoken_warm_up import reference_options, speak_text
from antiphon_services.qwen3_tts.talker.engine import CODES, TtsTalkerEngine
from antiphon_services.qwen3_tts.talker.tts_segment import INPUT
from antiphon_services.qwen3_tts.talker.voice_options import CheckpointKind

# The number of rows that don't belong to the text, including those for a recording.
OTHER_ROWS = 32


def warm_up(
    engine: TtsTalkerEngine,
    kind: CheckpointKind,
    sampling: Sampling,
    slots: int,
    context_limit: int,
) -> None:
    """Warm up the engine (see `antiphon_services.lm.warm_up`). Raises `Internal` if it doesn't emit
    any codes.
    """
    options: dict[str, OptionValue] = {"text_mode": WHOLE_TEXT}
    if kind.clones:
        options |= reference_options(SAMPLE_RATE_HZ)
    room = context_limit - OTHER_ROWS
    speak_text(engine, INPUT, CODES, sampling, slots, room, options)
