"""A device that makes its asynchronous copies as late as it may, without a GPU."""

from __future__ import annotations

import pytest
from torch import Tensor


class LateDevice:
    """Defers `copy_(..., non_blocking=True)` until an event after it is waited for.

    A buffer that is filled again before its event was waited for spoils the deferred copy.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pending: list[tuple[Tensor, Tensor]] = []
        self.most_pending = 0
        self._copy = Tensor.copy_

        def copy(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
            if not non_blocking:
                return self._copy(target, source)
            self.pending.append((target, source))
            self.most_pending = max(self.most_pending, len(self.pending))
            return target

        monkeypatch.setattr(Tensor, "copy_", copy)

    def new_event(self) -> LateEvent:
        """An event on this device."""
        return LateEvent(self)

    def run_until(self, last: tuple[Tensor, Tensor]) -> None:
        """Make the pending copies up to and including `last`, if it is pending."""
        places = [at for at, each in enumerate(self.pending) if each is last]
        if not places:
            return
        due, self.pending = self.pending[: places[0] + 1], self.pending[places[0] + 1 :]
        for target, source in due:
            self._copy(target, source)


class LateEvent:
    """Implements `CopyEvent`."""

    def __init__(self, device: LateDevice) -> None:
        self._device = device
        self._last: tuple[Tensor, Tensor] | None = None

    def record(self) -> None:
        """Mark the last pending copy."""
        self._last = self._device.pending[-1]

    def synchronize(self) -> None:
        """Make the copies up to the marked one."""
        if self._last is not None:
            self._device.run_until(self._last)
