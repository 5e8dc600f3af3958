from __future__ import annotations

from collections import Counter

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.server.description import MAX_COUNT, StageIdentity, describe
from antiphon.transport.settings import LinkState
from antiphon_testkit.qwen3_omni.fake_engine import FACTS


def test_description_holds_counts_to_what_its_message_can_say() -> None:
    link = LinkState(outgoing=False, counts=Counter({"bytes.grpc": 1 << 70, "messages": 3}))
    told = describe(
        StageIdentity(PIPELINE, "code2wav", FACTS, slots=1),
        open_sessions=0,
        open_segments=0,
        held_segments=0,
        output_positions={},
        links=[link],
    )
    assert dict(told.links[0].counts) == {"bytes.grpc": MAX_COUNT, "messages": 3}
