from __future__ import annotations

from antiphon.v1 import stage_pb2
from antiphon_tools.chaos.link_totals import LinkTotals


def link(**counts: int) -> list[stage_pb2.LinkState]:
    named = {name.replace("_", "."): count for name, count in counts.items()}
    return [stage_pb2.LinkState(outgoing=True, peer_address="a:1", counts=named)]


def test_a_link_that_is_replaced_is_counted_from_zero() -> None:
    totals = LinkTotals()
    totals.observe({"talker": link(carried_ring=5, carried_stream=2)})
    totals.observe({"talker": link(carried_ring=7, carried_stream=2, damaged=1)})
    totals.observe({"talker": link(carried_ring=3, carried_stream=1), "talker#2": []})
    assert str(totals).startswith("links: 10 messages in rings, 3 on streams; 1 messages or rings")


def test_a_reconnection_that_both_ends_count_is_one() -> None:
    totals = LinkTotals()
    (outgoing,) = link(reconnected=1, damaged=1)
    incoming = stage_pb2.LinkState(peer_address="b:1", counts={"reconnected": 1, "damaged": 2})
    totals.observe({"talker": [outgoing], "code2wav": [incoming]})
    assert str(totals).endswith("3 messages or rings were damaged; links have reconnected 1 times")
