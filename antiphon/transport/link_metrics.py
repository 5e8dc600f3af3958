"""Prometheus metrics for a stage's links to its consumers.

Link metrics are exported only by the sending stage, so a sum over all stages counts each link once.
Each peer has its own series, which is labeled with the peer's name. If there are more than
`MAX_PEERS` peers, the remaining ones share the name `OTHERS`. When a lost link is replaced, its
counters restart from zero.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from antiphon.transport.settings import LinkState

PREFIX = "antiphon_link_"
MAX_PEERS = 64
OTHERS = "other"

_LINK = ("stage", "peer_role", "peer")
# The name, help text and optional last label of each series. The key is the part of a counter's
# name before its dot. The part after the dot is the value of the label.
_COUNTED = {
    "messages": ("messages", "Messages sent on the link"),
    "message_bytes": ("message_bytes", "Bytes of messages sent on the link"),
    "carried": ("carried_messages", "Messages sent on the link, by carrier", "carrier"),
    "reconnected": ("reconnects", "Reconnections of the link"),
    "resent": ("resent_chunks", "Chunks sent again, after a reconnection or a corrupt message"),
    "chunks": ("chunks", "Chunks with tensors, by transport", "transport"),
    "bytes": ("payload_bytes", "Bytes of tensors, by transport", "transport"),
    "fallback": (
        "fallbacks",
        "Chunks sent over gRPC instead of the negotiated transport, by reason",
        "reason",
    ),
}
Labels = tuple[str, ...]
Family = TypeVar("Family", GaugeMetricFamily, CounterMetricFamily)


class LinkMetrics:
    """The metrics of all links of `stage`. `links` returns the current state of the links, and is
    called on each scrape.

    If a link shares the name `OTHERS`, its counters are kept after the link is lost.
    """

    def __init__(self, stage: str, links: Callable[[], Iterable[LinkState]]) -> None:
        self._stage = stage
        self._links = links
        self._named: set[str] = set()
        self._others: dict[int, LinkState] = {}
        self._lost: Counter[tuple[Labels, str]] = Counter()

    def families(self) -> Iterator[Metric]:
        """Yield all series of all links."""
        links = self._labelled()
        agreed = Counter((*labels, link.transport) for labels, link in links)
        words = "Links by negotiated transport, which is empty if none was negotiated yet"
        yield _gauge("transport", words, agreed, "transport")
        connected: Counter[Labels] = Counter()
        for labels, link in links:
            connected[labels] += link.connected
        yield _gauge("connected", "Links with an open stream", connected)
        refused = Counter(
            (*labels, *_refusal(words)) for labels, link in links for words in link.refused
        )
        words = "Links that could not use a faster transport, by reason"
        yield _gauge("refused", words, refused, "transport", "reason")
        sums: defaultdict[str, Counter[Labels]] = defaultdict(Counter)
        told = [(labels, *each) for labels, link in links for each in link.counts.items()]
        lost = [(labels, counted, value) for (labels, counted), value in self._lost.items()]
        for labels, counted, value in (*told, *lost):
            name, rest = _split(counted)
            sums[name][(*labels, *rest)] += value
        for name, (series, words, *more) in _COUNTED.items():
            family = CounterMetricFamily(PREFIX + series, words, labels=(*_LINK, *more))
            yield _filled(family, sums[name])

    def _labelled(self) -> list[tuple[Labels, LinkState]]:
        """Return the links with their labels. As long as a peer is linked, it keeps its label,
        which is either its own name or `OTHERS`.
        """
        links = list(self._links())
        for number in self._others.keys() - {id(link) for link in links}:
            gone = self._others.pop(number)
            for counted, value in gone.counts.items():
                self._lost[self._labels(gone, OTHERS), counted] += value
        self._named &= {_name(link) for link in links if id(link) not in self._others}
        labelled = []
        for link in links:
            name = _name(link)
            is_other = id(link) in self._others
            if is_other or (name not in self._named and len(self._named) >= MAX_PEERS):
                self._others[id(link)] = link
                name = OTHERS
            else:
                self._named.add(name)
            labelled.append((self._labels(link, name), link))
        return labelled

    def _labels(self, link: LinkState, name: str) -> Labels:
        return self._stage, link.peer_role, name


def _name(link: LinkState) -> str:
    """Return the name of the peer. Until the name is known, its address is returned."""
    return link.peer_name or link.peer_address


@cache
def _split(counted: str) -> tuple[str, Labels]:
    """Split the name of a counter at the dot."""
    name, dot, rest = counted.partition(".")
    return name, (rest,) if dot else ()


def _refusal(words: str) -> tuple[str, str]:
    """Split a refusal of the form "transport: reason"."""
    transport, _, reason = words.partition(": ")
    return transport, reason


def _gauge(name: str, words: str, values: Counter[Labels], *more: str) -> Metric:
    return _filled(GaugeMetricFamily(PREFIX + name, words, labels=(*_LINK, *more)), values)


def _filled(family: Family, values: Counter[Labels]) -> Family:
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family
