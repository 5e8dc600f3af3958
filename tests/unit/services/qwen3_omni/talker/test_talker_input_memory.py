"""What comes over a link is the transport's memory: the talker keeps copies."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.runtime.engine import InputChunk
from antiphon.values.segment import SegmentKey
from antiphon_testkit.drive_engine import SegmentOutput, advance, run_segment
from tests.lent_slots import LentSlots
from tests.unit.services.qwen3_omni.talker.talker_lab import Lab, codes_of
from tests.unit.services.qwen3_omni.talker.test_talker_vision import IMAGE, turn_with

KEY = SegmentKey("s", 0)


@pytest.mark.parametrize("kind", ["whole", "live", "seen"])
def test_slots_of_a_prompt_and_a_reply_are_free_when_they_were_accepted(
    small: Lab, kind: str
) -> None:
    turn = small.turn(20, audio=6)
    if kind == "seen":
        turn = turn_with(small, (IMAGE,))
    chunks = turn.chunks()
    if kind == "live":
        half = len(turn.prompt) // 2
        first = InputChunk(
            "prompt", 0, {"ids": turn.prompt[:half], "more_ids": np.ones(1, np.uint8)}
        )
        chunks[:1] = [first, InputChunk("prompt", half, {"ids": turn.prompt[half:]})]
    wanted = codes_of(small, run_segment(small.stage.engine, turn.settings, turn.chunks()))
    output = {KEY: SegmentOutput()}
    small.stage.engine.admit(KEY, turn.settings)
    with LentSlots() as slots:
        for chunk in chunks:
            small.stage.engine.accept(KEY, slots.lend(chunk))
            assert slots.used == 0, f"{chunk.edge} at {chunk.position}"
            slots.overwrite()
        advance(small.stage.engine, output)
    np.testing.assert_array_equal(codes_of(small, output[KEY]), wanted)
