"""Speaks a little before the stage is ready, so that no request pays for first calls.

Libraries set themselves up for a kind of product the first time they meet it: a chunk
of a prompt, few rows, as many rows as there are slots, a draw and a greedy choice.
Graphs are there before: a model is made with all of them, see `services.lm.graphs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from antiphon.errors import Internal
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.sampling import Sampling
from antiphon.segment import SegmentKey
from services.lm.frames import PART_ROWS
from services.lm.warm_up import run_to_the_end
from services.qwen3_omni.talker.engine import CODES, TalkerEngine
from services.qwen3_omni.talker.prompt import ANSWER_ROWS, PROMPT, TOKENS

FRAMES = 2


def warm_up(
    engine: TalkerEngine, special: SpecialIds, sampling: Sampling, slots: int, context_limit: int
) -> None:
    """One segment, then one in every slot. Raises `Internal` if the model gives no codes."""
    room = context_limit - ANSWER_ROWS - FRAMES
    if room < 1:
        return
    sampling = replace(sampling, max_tokens=FRAMES + 1)
    for company, rows in ((1, min(PART_ROWS + 1, room)), (slots, 1)):
        keys = [SegmentKey("warm-up", index) for index in range(company)]
        for index, key in enumerate(keys):
            temperature = sampling.temperature if index % 2 else 0.0
            settings = replace(sampling, temperature=temperature)
            engine.admit(key, SegmentSettings("", settings, frozenset({CODES})))
            for chunk in _make_input(special, rows):
                engine.accept(key, chunk)
        for failed in run_to_the_end(engine, keys):
            raise Internal(f"warm-up: {failed.error}")


def _make_input(special: SpecialIds, rows: int) -> Iterator[InputChunk]:
    """A user's turn of `rows` ids, and a reply of one token."""
    user = [special.im_start, special.user] + [special.assistant] * max(rows - 2, 0)
    header = [special.im_start, special.assistant, special.assistant]
    ids = np.array(user[:rows] + header, np.int32)
    yield InputChunk(PROMPT, 0, {"ids": ids}, segment_finished=True)
    yield InputChunk(TOKENS, 0, {"ids": ids[:1]}, segment_finished=True)
