"""The events of a launcher."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """The service has a process."""

    service: str
    pid: int


@dataclass(frozen=True, slots=True)
class Listening:
    """The service can be reached, and loads. `metrics` is where its series are, if anywhere."""

    service: str
    address: str
    metrics: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The service is ready to serve, this many seconds after its start."""

    service: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Exited:
    """The service's process has ended; `status` as `subprocess` gives it."""

    service: str
    status: int


@dataclass(frozen=True, slots=True)
class Restarting:
    """The service ended by itself and is started again after this many seconds."""

    service: str
    after_s: float


@dataclass(frozen=True, slots=True)
class Output:
    """A line that the service printed."""

    service: str
    line: str


LaunchEvent = ProcessStarted | Listening | Loaded | Exited | Restarting | Output
Report = Callable[[LaunchEvent], None]


def describe_status(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
