"""The events of a launcher."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ProcessStarted:
    """The process of a service has started."""

    service: str
    pid: int


@dataclass(frozen=True, slots=True)
class Listening:
    """A service is listening at `address`, but still loading.

    `metrics` is the address of its metrics, or empty if there is none.
    """

    service: str
    address: str
    metrics: str = ""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A service is ready. `seconds` is the time since its start."""

    service: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Exited:
    """The process of a service has ended. `status` has the format of `subprocess`."""

    service: str
    status: int


@dataclass(frozen=True, slots=True)
class Restarting:
    """A service has ended unexpectedly and will be restarted after `after_s` seconds."""

    service: str
    after_s: float


@dataclass(frozen=True, slots=True)
class StartFailed:
    """The process of a service that has ended could not be started again. `reason` is the error of
    the operating system.
    """

    service: str
    reason: str


@dataclass(frozen=True, slots=True)
class Output:
    """A line of output from a service."""

    service: str
    line: str


LaunchEvent = ProcessStarted | Listening | Loaded | Exited | Restarting | StartFailed | Output
Report = Callable[[LaunchEvent], None]


def describe_status(status: int) -> str:
    """Describe an exit status in words."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
