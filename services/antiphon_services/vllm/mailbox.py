"""Where threads that hear from vLLM, or make prompts, leave what came for the engine's thread.

Bounded by what is under way: a segment leaves here at most one prompt, the ids and rows that
its request may make, and one end.
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
    """A segment's prompt was made, or could not be."""

    key: SegmentKey


@dataclass(frozen=True, slots=True)
class Tokens:
    """The next ids of a request. `prompt_ids` and `cached` come with the first.

    `scores` say how likely each was, if that was asked for.
    """

    number: int
    ids: Sequence[int]
    prompt_ids: Sequence[int] | None
    cached: int
    finished: bool
    scores: Scores | None = None


@dataclass(frozen=True, slots=True)
class Rows:
    """Hidden rows [n, hidden] of a request's prompt from position `start` on."""

    number: int
    start: int
    rows: Tensor


@dataclass(frozen=True, slots=True)
class Ended:
    """The request will bring nothing more, because of a fault."""

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
        """Leave something. Called on any thread."""
        with self._wake:
            self._deliveries.append(delivery)
            self._wake.notify()

    def interrupt(self) -> None:
        """Make the `take` that waits, or else the next one, return. Called on any thread."""
        with self._wake:
            self._interrupted = True
            self._wake.notify()

    def take(self, timeout_s: float | None) -> list[Delivery]:
        """All deliveries; waits while there are none, at most `timeout_s` (None: for ever)."""
        with self._wake:
            self._wake.wait_for(lambda: self._deliveries or self._interrupted, timeout_s)
            self._interrupted = False
            taken, self._deliveries = self._deliveries, []
            return taken
