"""What a request wants to be admitted to. Pure."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from antiphon_gateway.admission.priority import Priority

CALLS = ""
"""The role of the gateway itself."""


class Urgency(enum.IntEnum):
    """In the order in which requests get their head start, the longest first."""

    TURN = 0
    AUDIO = 1
    TEXT = 2


@dataclass(frozen=True, slots=True)
class AdmissionRequest:
    """A request for `count` calls and as many slots of each role. While it waits it holds
    `size_bytes`.

    It must begin within `start_within_s`, and end within `finish_within_s`. `key` is the name of
    the API key; requests without a key share one.
    """

    roles: frozenset[str]
    urgency: Urgency = Urgency.TEXT
    count: int = 1
    size_bytes: int = 0
    start_within_s: float = math.inf
    finish_within_s: float = math.inf
    key: str = ""
    priority: Priority = Priority.NORMAL


@dataclass(slots=True, eq=False)
class QueueEntry:
    """A request that asks, waits or has been granted. Its `rank` is its place among the requests of
    its key; `latest` is until when it may wait. Its key was charged `charged_s` for it."""

    number: int
    request: AdmissionRequest
    rank: float
    latest: float
    # What it holds, by role, since when.
    held: dict[str, float] = field(default_factory=dict)
    opened: bool = False
    charged_s: float = 0.0

    @property
    def order(self) -> tuple[float, int]:
        """Among those of its key."""
        return self.rank, self.number

    @property
    def needs(self) -> Iterator[str]:
        """The roles that the request needs."""
        yield CALLS
        yield from self.request.roles
