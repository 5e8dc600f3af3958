"""Simulates a device without streams, whose copies are only made when something waits for them."""

from __future__ import annotations

from collections import deque

import torch

from antiphon.transport.device_edge import UNIT_BYTES, Mark, Staging, ToHost


class LateMark:
    """A mark that is reached once all earlier copies have been made."""

    def __init__(self, copies: LateCopies) -> None:
        self._copies = copies
        self._count = copies.begun

    def query(self) -> bool:
        """Return whether these copies have been made."""
        return self._copies.made >= self._count

    def synchronize(self) -> None:
        """Make these copies."""
        while not self.query():
            self._copies.make_one()


class LateCopies:
    """Implements `antiphon.transport.device_edge.Copies`."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self.begun = self.made = 0
        self.preceded: list[Mark] = []

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Add a copy to the queue."""
        self._pending.append((target, source))
        self.begun += 1

    def mark(self) -> LateMark:
        """Return a mark for all copies in the queue."""
        return LateMark(self)

    def precede(self, mark: Mark) -> None:
        """Record the mark."""
        self.preceded.append(mark)

    @torch.inference_mode()
    def make_one(self) -> None:
        """Make the oldest copy in the queue."""
        target, source = self._pending.popleft()
        target.copy_(source)
        self.made += 1


def late_to_host(copies: LateCopies | None = None) -> ToHost:
    """Return a function for outputs that only arrive on the host when something waits for them."""
    return ToHost(copies or LateCopies(), Staging(8 * UNIT_BYTES, pinned=False))
