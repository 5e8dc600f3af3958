"""Deliveries to the engine's thread from threads that serve vLLM or prepare prompts.

Bounded by the work in progress: a segment delivers at most one prompt, its request's ids and rows,
and one end.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

from antiphon.errors import AntiphonError
from antiphon.values.chunk import Tensor
from antiphon.values.segment import SegmentKey
from antiphon_services.vllm.scores import Scores


@dataclass(frozen=True, slots=True)
class Prepared:
    """A segment's prompt was prepared, or failed."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next ids of a request. `prompt_ids` and `cached` are set in the first.

    `scores` are their log probabilities, if requested.
    """

    number: int
    ids: Sequence[int]
    prompt_ids: Sequence[int] | None
    cached: int
    finished: bool
    scores: Scores | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Hidden rows [n, hidden] of a request, from position `start` on."""

    number: int
    start: int
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Ended:
    """The request failed and yields no more results."""

    number: int
    error: AntiphonError


FromVllm = Tokens | Rows | Ended
Delivery = Prepared | FromVllm


class Mailbox:
    """Deliveries in order of arrival."""

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._interrupted = False
        self._wake = threading.Condition()

    def put(self, delivery: Delivery) -> None:
        """Add a delivery. Callable on any thread."""
        with self._wake:
            self._deliveries.append(delivery)
            self._wake.notify()

    def interrupt(self) -> None:
        """Make the blocked or the next `take` return. Callable on any thread."""
        with self._wake:
            self._interrupted = True
            self._wake.notify()

    def take(self, timeout_s: float | None) -> list[Delivery]:
        """Return all deliveries; waits for at most `timeout_s` if there are none (None:
        forever)."""
        with self._wake:
            self._wake.wait_for(lambda: self._deliveries or self._interrupted, timeout_s)
            self._interrupted = False
            taken, self._deliveries = self._deliveries, []
            return taken
