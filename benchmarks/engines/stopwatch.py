"""What steps of an engine take: CPU time of this thread, or time of a device by its events."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Times laps: `start`, then `lap` at the end of each."""

    def start(self) -> None:
        """Begin the first lap, with no laps."""

    def lap(self) -> None:
        """End a lap and begin the next."""

    def laps_ms(self) -> list[float]:
        """Milliseconds of each lap."""


class ThreadTime:
    """CPU time of this thread: others may share the machine."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def start(self) -> None:
        """Begin."""
        self._marks = [time.thread_time()]

    def lap(self) -> None:
        """End a lap."""
        self._marks.append(time.thread_time())

    def laps_ms(self) -> list[float]:
        """Of each lap."""
        return [1e3 * (end - begin) for begin, end in pairwise(self._marks)]


class DeviceTime:
    """Time between events of a device's current stream, which no clock of the host delays."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def start(self) -> None:
        """Begin when all that was asked before is done."""
        torch.cuda.synchronize(self._device)
        self._events = []
        self.lap()

    def lap(self) -> None:
        """Ask for an event behind what was asked so far."""
        make: Any = torch.cuda.Event
        event: torch.cuda.Event = make(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def laps_ms(self) -> list[float]:
        """Of each lap, once the last has ended."""
        torch.cuda.synchronize(self._device)
        pairs = pairwise(self._events)
        return [begin.elapsed_time(end) for begin, end in pairs]


def stopwatch_of(device: torch.device) -> Stopwatch:
    """Whichever is right for a device."""
    return DeviceTime(device) if device.type == "cuda" else ThreadTime()
