"""What comes over a link is the transport's memory: the talker keeps copies."""

from __future__ import annotations

from antiphon.pipelines.qwen2_5_omni import CODES
from antiphon.values.segment import SegmentKey
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput, advance
from tests.lent_slots import LentSlots
from tests.unit.services.qwen2_5_omni.talker.codec_talker_lab import Lab, settings

KEY = SegmentKey("s", 0)


def test_slots_of_a_prompt_and_a_reply_are_free_when_they_were_accepted(lab: Lab) -> None:
    question = lab.ask(conversation(("user", "Count the days")))
    engine, output = lab.engine(), {KEY: SegmentOutput()}
    engine.admit(KEY, settings())
    with LentSlots() as slots:
        for chunk in question.chunks((7,)):
            engine.accept(KEY, slots.lend(chunk))
            assert slots.used == 0, f"{chunk.edge} at {chunk.position}"
            slots.overwrite()
        advance(engine, output)
    assert output[KEY].failed is None
    assert output[KEY].tensors(CODES)["codes"][:, 0].tolist() == question.truth.codes.tolist()
