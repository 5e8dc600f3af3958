"""A device without streams whose copies are made only when somebody waits for them."""

from __future__ import annotations

from collections import deque

import torch

from antiphon.transport.device_edge import UNIT_BYTES, Mark, Staging, ToHost


class LateMark:
    """Reached when the copies before it have been made."""

    def __init__(self, copies: LateCopies) -> None:
        self._copies = copies
        self._count = copies.begun

    def query(self) -> bool:
        """Whether they have."""
        return self._copies.made >= self._count

    def synchronize(self) -> None:
        """Make them."""
        while not self.query():
            self._copies.make_one()


class LateCopies:
    """Implements `antiphon.transport.device_edge.Copies`."""

    def __init__(self) -> None:
        self._pending: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
        self.begun = self.made = 0
        self.preceded: list[Mark] = []

    def begin(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Put it off."""
        self._pending.append((target, source))
        self.begun += 1

    def mark(self) -> LateMark:
        """After what was put off so far."""
        return LateMark(self)

    def precede(self, mark: Mark) -> None:
        """Note it."""
        self.preceded.append(mark)

    @torch.inference_mode()
    def make_one(self) -> None:
        """Make the copy that has waited longest."""
        target, source = self._pending.popleft()
        target.copy_(source)
        self.made += 1


def late_to_host(copies: LateCopies | None = None) -> ToHost:
    """Outputs that are on the host only when they are waited for."""
    return ToHost(copies or LateCopies(), Staging(8 * UNIT_BYTES, pinned=False))
