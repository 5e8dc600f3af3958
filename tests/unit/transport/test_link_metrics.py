from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from antiphon.transport.link_metrics import MAX_PEERS, OTHERS, LinkMetrics
from antiphon.transport.settings import LinkState

LABELS = ("thinker", "talker", "talker-7f9c")
MESSAGES = "antiphon_link_messages_total"
Samples = dict[tuple[str, tuple[str, ...]], float]


class Told:
    """What `LinkMetrics` tells, as the registry of a page wants it."""

    def __init__(self, metrics: LinkMetrics) -> None:
        self.collect = metrics.families


def series(told: LinkMetrics) -> Samples:
    """All samples: name and label values to value."""
    samples: Samples = {}
    for family in text_string_to_metric_families(generate_latest(Told(told)).decode()):  # type: ignore[arg-type]
        assert family.documentation
        for sample in family.samples:
            more = sorted(sample.labels.keys() - {"stage", "peer_role", "peer"}, reverse=True)
            names = ("stage", "peer_role", "peer", *more)
            key = sample.name, tuple(sample.labels[name] for name in names)
            assert key not in samples, f"{key} comes twice"
            samples[key] = sample.value
    return samples


def link(name: str = "talker-7f9c", *, connected: bool = True, **counts: int) -> LinkState:
    state = LinkState(True, "talker", "10.0.0.7:50051", name, connected)
    state.counts.update(counts)
    return state


def thinker(links: Iterable[LinkState]) -> LinkMetrics:
    return LinkMetrics("thinker", lambda: links)


def test_link_is_told_with_transport_counts_fallbacks_and_refusals() -> None:
    state = link()
    state.transport = "shared_memory"
    state.refused = ("nccl: the consumer only accepts auto", "other")
    state.counts = Counter({
        "chunks.shared_memory": 3, "bytes.shared_memory": 3_000_000, "chunks.grpc": 40,
        "bytes.grpc": 900, "fallback.slab_full": 2, "messages": 12, "message_bytes": 2_000,
        "reconnected": 1, "resent": 5, "carried.ring": 9, "carried.stream": 3,
    })  # fmt: skip
    assert series(thinker([state])) == {
        ("antiphon_link_transport", (*LABELS, "shared_memory")): 1,
        ("antiphon_link_connected", LABELS): 1,
        ("antiphon_link_refused", (*LABELS, "nccl", "the consumer only accepts auto")): 1,
        ("antiphon_link_refused", (*LABELS, "other", "")): 1,
        ("antiphon_link_chunks_total", (*LABELS, "shared_memory")): 3,
        ("antiphon_link_chunks_total", (*LABELS, "grpc")): 40,
        ("antiphon_link_payload_bytes_total", (*LABELS, "shared_memory")): 3_000_000,
        ("antiphon_link_payload_bytes_total", (*LABELS, "grpc")): 900,
        ("antiphon_link_fallbacks_total", (*LABELS, "slab_full")): 2,
        (MESSAGES, LABELS): 12,
        ("antiphon_link_message_bytes_total", LABELS): 2_000,
        ("antiphon_link_carried_messages_total", (*LABELS, "ring")): 9,
        ("antiphon_link_carried_messages_total", (*LABELS, "stream")): 3,
        ("antiphon_link_reconnects_total", LABELS): 1,
        ("antiphon_link_resent_chunks_total", LABELS): 5,
    }


def test_links_to_one_peer_are_summed_and_those_to_others_are_not() -> None:
    samples = series(thinker([link(messages=2), link(messages=3), link("talker-b", messages=7)]))
    assert samples[MESSAGES, LABELS] == 5
    assert samples["antiphon_link_transport", (*LABELS, "")] == 2
    assert samples["antiphon_link_connected", LABELS] == 2
    assert samples[MESSAGES, ("thinker", "talker", "talker-b")] == 7


def test_peer_that_has_not_answered_yet_is_told_by_its_address() -> None:
    unknown = LinkState(True, peer_address="10.0.0.9:50051")
    samples = series(thinker([unknown]))
    assert samples["antiphon_link_connected", ("thinker", "", "10.0.0.9:50051")] == 0


def test_nothing_is_told_when_there_are_no_links() -> None:
    assert series(thinker([])) == {}


def test_peers_beyond_the_bound_are_one_whose_counts_never_fall() -> None:
    links = [link(f"talker-{number}", messages=1) for number in range(MAX_PEERS + 3)]
    told = thinker(links)
    samples = series(told)
    others = ("thinker", "talker", OTHERS)
    assert len([name for name, _ in samples if name == MESSAGES]) == MAX_PEERS + 1
    assert samples[MESSAGES, others] == 3
    # The first of all is lost, and one of the others: neither may take anything with it that
    # Prometheus would read as a new start.
    del links[0], links[-1]
    links[-1].counts["messages"] += 4
    samples = series(told)
    assert samples[MESSAGES, others] == 7
    assert samples["antiphon_link_connected", others] == 2
    assert (MESSAGES, ("thinker", "talker", "talker-0")) not in samples
    # A new peer has the place that became free.
    links.append(link("talker-new", messages=2))
    samples = series(told)
    assert samples[MESSAGES, ("thinker", "talker", "talker-new")] == 2
    assert samples[MESSAGES, others] == 7
