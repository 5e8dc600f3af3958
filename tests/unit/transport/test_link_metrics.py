from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.transport.link_metrics import LINK, LinkMetrics, ObservedLink
from antiphon.transport.settings import LinkState
from antiphon.v1 import stage_pb2


def series(**stages: Sequence[ObservedLink]) -> dict[tuple[str, tuple[str, ...]], float]:
    """All samples: name and label values to value."""
    links = [(role, link) for role, links in stages.items() for link in links]
    text = generate_latest(LinkMetrics(links)).decode()
    samples = {}
    for family in text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            more = sorted(set(sample.labels) - set(LINK), reverse=True)
            key = sample.name, tuple(sample.labels[name] for name in (*LINK, *more))
            assert key not in samples, f"{key} comes twice"
            samples[key] = sample.value
    return samples


def link(**fields: object) -> stage_pb2.LinkState:
    given = {"peer_role": "talker", "peer_address": "here:1", "outgoing": True, "connected": True}
    return stage_pb2.LinkState(**(given | fields))  # type: ignore[arg-type]


LABELS = ("thinker", "out", "talker", "here:1")


def test_link_is_told_with_transport_counts_fallbacks_and_refusals() -> None:
    counts = {
        "chunks.shared_memory": 3, "bytes.shared_memory": 3_000_000, "chunks.grpc": 40,
        "bytes.grpc": 900, "fallback.slab_full": 2, "messages": 12, "message_bytes": 2_000,
        "reconnected": 1, "resent": 5,
    }  # fmt: skip
    refused = ["nccl: the consumer is set to auto", "other"]
    samples = series(thinker=[link(transport="shared_memory", refused=refused, counts=counts)])
    assert samples == {
        ("antiphon_link_transport", (*LABELS, "shared_memory")): 1,
        ("antiphon_link_connected", LABELS): 1,
        ("antiphon_link_refused", (*LABELS, "nccl", "the consumer is set to auto")): 1,
        ("antiphon_link_refused", (*LABELS, "other", "")): 1,
        ("antiphon_link_chunks_total", (*LABELS, "shared_memory")): 3,
        ("antiphon_link_chunks_total", (*LABELS, "grpc")): 40,
        ("antiphon_link_payload_bytes_total", (*LABELS, "shared_memory")): 3_000_000,
        ("antiphon_link_payload_bytes_total", (*LABELS, "grpc")): 900,
        ("antiphon_link_fallbacks_total", (*LABELS, "slab_full")): 2,
        ("antiphon_link_messages_total", LABELS): 12,
        ("antiphon_link_message_bytes_total", LABELS): 2_000,
        ("antiphon_link_reconnects_total", LABELS): 1,
        ("antiphon_link_resent_chunks_total", LABELS): 5,
    }


def test_links_to_one_peer_are_summed_and_those_of_other_stages_are_not() -> None:
    two = [link(transport="grpc", counts={"messages": 2}), link(counts={"messages": 3})]
    other = link(outgoing=False, connected=False, peer_role="thinker", counts={"messages": 7})
    samples = series(thinker=two, talker=[other])
    assert samples["antiphon_link_messages_total", LABELS] == 5
    assert samples["antiphon_link_transport", (*LABELS, "grpc")] == 1
    assert samples["antiphon_link_transport", (*LABELS, "")] == 1
    assert samples["antiphon_link_connected", LABELS] == 2
    there = ("talker", "in", "thinker", "here:1")
    assert samples["antiphon_link_messages_total", there] == 7
    assert samples["antiphon_link_connected", there] == 0


def test_nothing_is_told_when_there_are_no_links() -> None:
    assert series(thinker=[]) == {}


def test_a_stages_own_state_of_a_link_gives_the_series_of_what_it_describes() -> None:
    state = LinkState(True, "talker", "here:1", True, "grpc", ("nccl: no",), Counter(messages=2))
    state.count_payload("grpc", 70)
    described = link(transport="grpc", refused=["nccl: no"], counts=state.counts)
    assert series(thinker=[state]) == series(thinker=[described])
    assert series(thinker=[state])["antiphon_link_payload_bytes_total", (*LABELS, "grpc")] == 70
