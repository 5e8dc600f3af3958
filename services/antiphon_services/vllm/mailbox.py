"""Deliveries to the engine's thread from the threads that serve vLLM or prepare prompts.

The size of the mailbox is limited by the work in progress. A segment delivers at most one prompt,
the IDs and rows of its request, and one end.
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
    """The prompt of a segment has been prepared, or its preparation has failed."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next IDs of a request. `prompt_ids` and `cached` are only set in the first delivery.

    `scores` contains their log probabilities, if these were requested.
    """

    number: int
    ids: Sequence[int]
    prompt_ids: Sequence[int] | None
    cached: int
    finished: bool
    scores: Scores | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Hidden rows [n, hidden] of a request, beginning at position `start`."""

    number: int
    start: int
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Ended:
    """The request failed and delivers no more results."""

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
        """Add a delivery. This can be called on any thread."""
        with self._wake:
            self._deliveries.append(delivery)
            self._wake.notify()

    def interrupt(self) -> None:
        """Make the current call of `take` return if it is blocked, or otherwise the next one. This
        can be called on any thread.
        """
        with self._wake:
            self._interrupted = True
            self._wake.notify()

    def take(self, timeout_s: float | None) -> list[Delivery]:
        """Return all deliveries. If there are none, wait for up to `timeout_s` seconds, or without
        a limit if it is None.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._deliveries or self._interrupted, timeout_s)
            self._interrupted = False
            taken, self._deliveries = self._deliveries, []
            return taken
