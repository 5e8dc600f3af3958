"""What a listener would notice of an answer: when it begins and whether it keeps up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.client.aio import AsyncGeneration
from antiphon.client.events import AudioDelta, Event, Finished, TextDelta
from antiphon.client.reply import BYTES_PER_SAMPLE, Reply, join_events


@dataclass(frozen=True, slots=True)
class Measured:
    """An answer and its times, in seconds since the request was sent; None: there was none."""

    reply: Reply
    first_text_s: float | None
    first_audio_s: float | None
    last_event_s: float

    @property
    def real_time_factor(self) -> float | None:
        """Time to make the answer ÷ length of its audio; below 1 keeps up with a listener."""
        return self.last_event_s / self.reply.audio_s if self.reply.pcm16 else None


@dataclass(slots=True)
class Progress:
    """An answer so far, as a person may watch it."""

    text: str = ""
    audio_s: float = 0.0


async def measure(generation: AsyncGeneration, show: Callable[[Progress], None]) -> Measured:
    """Read an answer to its end, calling `show` after each event."""
    clock = asyncio.get_running_loop().time
    sent_at, at_s, progress = clock(), 0.0, Progress()
    events: list[Event] = []
    first: dict[type[Event], float] = {}
    async with generation:
        async for event in generation:
            at_s = clock() - sent_at
            events.append(event)
            first.setdefault(type(event), at_s)
            _advance(progress, event, generation.sample_rate_hz)
            show(progress)
    reply = join_events(events, generation.sample_rate_hz)
    return Measured(reply, first.get(TextDelta), first.get(AudioDelta), at_s)


def _advance(progress: Progress, event: Event, sample_rate_hz: int) -> None:
    match event:
        case TextDelta():
            progress.text += event.text
        case AudioDelta():
            progress.audio_s += len(event.pcm16) / (BYTES_PER_SAMPLE * sample_rate_hz)
        case Finished():
            pass
