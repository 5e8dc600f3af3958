"""Warms up the talker."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.runtime.engine import InputChunk
from antiphon.values.sampling import Sampling
from antiphon_services.lm.warm_up import speak
from antiphon_services.qwen3_omni.talker.engine import CODES, TalkerEngine
from antiphon_services.qwen3_omni.talker.prompt import ANSWER_ROWS, PROMPT, TOKENS


def warm_up(
    engine: TalkerEngine, special: SpecialIds, sampling: Sampling, slots: int, context_limit: int
) -> None:
    """Warm up the engine (see `antiphon_services.lm.warm_up`). Raises `Internal` if it doesn't emit
    any codes.
    """
    speak(
        engine, CODES, sampling, slots, context_limit - ANSWER_ROWS, partial(_make_input, special)
    )


def _make_input(special: SpecialIds, rows: int) -> Iterator[InputChunk]:
    """Yield a user turn of `rows` IDs and a reply that consists of a single token."""
    user = [special.im_start, special.user] + [special.assistant] * max(rows - 2, 0)
    header = [special.im_start, special.assistant, special.assistant]
    ids = np.array(user[:rows] + header, np.int32)
    yield InputChunk(PROMPT, 0, {"ids": ids}, segment_finished=True)
    yield InputChunk(TOKENS, 0, {"ids": ids[:1]}, segment_finished=True)
