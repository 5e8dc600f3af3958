"""What is compared: one way to answer, and what it took in each round."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds from the question to the first audio, and to the end."""

    first_audio_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Round:
    """One round: median first audio of its sessions, time until all ended, CPU of all processes."""

    first_audio_s: float
    total_s: float
    cpu_s: float


@dataclass(slots=True)
class Side:
    """One of the things compared. `cpu_s` reads a clock of all processes that take part."""

    name: str
    run: Callable[[], Awaitable[Sequence[Taken]]]
    cpu_s: Callable[[], float] = time.process_time
    rounds: list[Round] = field(default_factory=list)

    async def measure(self) -> None:
        """Run once and note what it took."""
        cpu_s = self.cpu_s()
        taken = await self.run()
        self.rounds.append(
            Round(
                statistics.median(each.first_audio_s for each in taken),
                max(each.total_s for each in taken),
                self.cpu_s() - cpu_s,
            )
        )
