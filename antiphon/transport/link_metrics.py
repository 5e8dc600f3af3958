"""The links of stages as Prometheus series.

A stage tells its own, the gateway those of all stages, as they come in `Describe`. A link's
counts begin with it, so a series starts anew when a lost link is replaced.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

PREFIX = "antiphon_link_"
LINK = ("stage", "direction", "peer_role", "peer")

# Series by the prefix of the count's name; the rest of the name is the last label.
_BY_LABEL = {
    "chunks": ("chunks", "Chunks with tensors by transport", "transport"),
    "bytes": ("payload_bytes", "Bytes of tensors by transport", "transport"),
    "fallback": ("fallbacks", "Chunks that had to go over gRPC by reason", "reason"),
}
_PLAIN = {
    "messages": ("messages", "Messages on the link's stream"),
    "message_bytes": ("message_bytes", "Bytes of these messages, on the producer's side"),
    "reconnected": ("reconnects", "Times that the link has healed"),
    "resent": ("resent_chunks", "Chunks that were sent again"),
}


class ObservedLink(Protocol):
    """A `LinkState`, of `antiphon.transport.settings` or as the proto has it."""

    @property
    def outgoing(self) -> bool:
        """Whether the stage is its producer."""

    @property
    def peer_role(self) -> str:
        """The stage at its other end."""

    @property
    def peer_address(self) -> str:
        """Where that listens."""

    @property
    def connected(self) -> bool:
        """Whether its stream is up."""

    @property
    def transport(self) -> str:
        """What was agreed on; empty: nothing yet."""

    @property
    def refused(self) -> Sequence[str]:
        """Better transports that it does without, as "transport: reason"."""

    @property
    def counts(self) -> Mapping[str, int]:
        """By name; see `antiphon.transport.settings.LinkState`."""


class LinkMetrics(Collector):
    """The series of links, each with the role of the stage that tells of it."""

    def __init__(self, links: Iterable[tuple[str, ObservedLink]]) -> None:
        self._links = [(_labels(stage, link), link) for stage, link in links]

    def collect(self) -> Iterator[Metric]:
        """All series of all links."""
        agreed = Counter((*labels, link.transport) for labels, link in self._links)
        words = "Links by the transport that was agreed on; empty: none yet"
        yield _gauge("transport", words, ("transport",), agreed)
        connected: Counter[tuple[str, ...]] = Counter()
        for labels, link in self._links:
            connected[labels] += link.connected
        yield _gauge("connected", "Links whose stream is up", (), connected)
        refused = Counter(
            (*labels, *_refusal(words)) for labels, link in self._links for words in link.refused
        )
        words = "Links that did without a better transport, by the reason"
        yield _gauge("refused", words, ("transport", "reason"), refused)
        for name, (series, words) in _PLAIN.items():
            yield _counter(series, words, (), self._sums(name))
        for name, (series, words, label) in _BY_LABEL.items():
            yield _counter(series, words, (label,), self._sums(name, split=True))

    def _sums(self, name: str, *, split: bool = False) -> Counter[tuple[str, ...]]:
        """A count of all links, by their labels and, with `split`, what follows its name."""
        sums: Counter[tuple[str, ...]] = Counter()
        for labels, link in self._links:
            for counted, value in link.counts.items():
                head, _, rest = counted.partition(".")
                if head == name and bool(rest) == split:
                    sums[(*labels, rest) if split else labels] += value
        return sums


def _labels(stage: str, link: ObservedLink) -> tuple[str, ...]:
    return stage, "out" if link.outgoing else "in", link.peer_role, link.peer_address


def _refusal(words: str) -> tuple[str, str]:
    """Transport and reason of a refusal, which reads "transport: reason"."""
    transport, _, reason = words.partition(": ")
    return transport, reason


def _gauge(
    name: str, words: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, words, labels=(*LINK, *labels))
    _fill(family, values.items())
    return family


def _counter(
    name: str, words: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]
) -> CounterMetricFamily:
    family = CounterMetricFamily(PREFIX + name, words, labels=(*LINK, *labels))
    _fill(family, values.items())
    return family


def _fill(
    family: GaugeMetricFamily | CounterMetricFamily, values: Iterable[tuple[tuple[str, ...], int]]
) -> None:
    for labels, value in values:
        family.add_metric(labels, value)
