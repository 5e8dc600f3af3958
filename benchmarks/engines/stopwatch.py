"""Measures the time of engine steps, as CPU time of this thread or as time on a device."""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any, Protocol

import torch


class Stopwatch(Protocol):
    """Measures laps. Call `start` once, and then `lap` at the end of each lap."""

    def start(self) -> None:
        """Delete all laps and start the first one."""

    def lap(self) -> None:
        """End the current lap and start the next one."""

    def laps_ms(self) -> list[float]:
        """Return the duration of each lap in milliseconds."""


class ThreadTime:
    """Measures CPU time of this thread, because other processes may use the same machine."""

    def __init__(self) -> None:
        self._marks: list[float] = []

    def start(self) -> None:
        """Implements `Stopwatch.start`."""
        self._marks = [time.thread_time()]

    def lap(self) -> None:
        """Implements `Stopwatch.lap`."""
        self._marks.append(time.thread_time())

    def laps_ms(self) -> list[float]:
        """Implements `Stopwatch.laps_ms`."""
        return [1e3 * (end - begin) for begin, end in pairwise(self._marks)]


class DeviceTime:
    """Measures the time between events of a device's current stream, independently of the host."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._events: list[torch.cuda.Event] = []

    def start(self) -> None:
        """Start after all previous work on the device has been completed."""
        torch.cuda.synchronize(self._device)
        self._events = []
        self.lap()

    def lap(self) -> None:
        """Record an event after the work that has been submitted so far."""
        make: Any = torch.cuda.Event
        event: torch.cuda.Event = make(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._events.append(event)

    def laps_ms(self) -> list[float]:
        """Wait for the last lap to end, and return the duration of each lap."""
        torch.cuda.synchronize(self._device)
        pairs = pairwise(self._events)
        return [begin.elapsed_time(end) for begin, end in pairs]


def stopwatch_of(device: torch.device) -> Stopwatch:
    """Return the appropriate stopwatch for a device."""
    return DeviceTime(device) if device.type == "cuda" else ThreadTime()
