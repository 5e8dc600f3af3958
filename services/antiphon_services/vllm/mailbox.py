"""Passes deliveries to the engine's thread. They come from the threads that serve vLLM or prepare
prompts.

The size of the mailbox is limited by the work in progress. Each segment delivers at most one
prompt, the IDs and rows of its request, and the end of the request.
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
    """A segment's prompt has been prepared, or its preparation has failed."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class Tokens:
    """A request's next IDs. `prompt_ids` and `cached` are only set in the first delivery.

    `scores` contains the log probabilities of the IDs if they were requested.
    """

    number: int
    ids: Sequence[int]
    prompt_ids: Sequence[int] | None
    cached: int
    finished: bool
    scores: Scores | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Hidden rows [n, hidden] of a request, for the positions from `start` onwards."""

    number: int
    start: int
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Ended:
    """The request failed and won't deliver any more results."""

    number: int
    error: AntiphonError


FromVllm = Tokens | Rows | Ended
Delivery = Prepared | FromVllm


class Mailbox:
    """Deliveries, in the order in which they arrived."""

    def __init__(self) -> None:
        self._deliveries: list[Delivery] = []
        self._interrupted = False
        self._wake = threading.Condition()

    def put(self, delivery: Delivery) -> None:
        """Add a delivery. This can be called from any thread."""
        with self._wake:
            self._deliveries.append(delivery)
            self._wake.notify()

    def interrupt(self) -> None:
        """Make `take` return immediately. If no call is blocked, this applies to the next one. This
        can be called from any thread.
        """
        with self._wake:
            self._interrupted = True
            self._wake.notify()

    def take(self, timeout_s: float | None) -> list[Delivery]:
        """Return all deliveries. If there are none, wait for up to `timeout_s` seconds, or
        indefinitely if it is None.
        """
        with self._wake:
            self._wake.wait_for(lambda: self._deliveries or self._interrupted, timeout_s)
            self._interrupted = False
            taken, self._deliveries = self._deliveries, []
            return taken
