"""Measures when an answer starts and whether it is generated faster than real time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from antiphon.client.aio import AsyncGeneration
from antiphon.client.events import AudioDelta, Event, Finished, TextDelta
from antiphon.client.reply import Reply, join_events


@dataclass(frozen=True, slots=True)
class MeasuredAnswer:
    """An answer and its times, in seconds since the request was sent.

    A time is None if the event did not occur. `audio_times` contains the arrival time of every
    piece of audio.
    """

    reply: Reply
    first_text_s: float | None
    audio_times: tuple[float, ...]
    last_event_s: float

    @property
    def first_audio_s(self) -> float | None:
        """The arrival time of the first audio."""
        return self.audio_times[0] if self.audio_times else None

    @property
    def real_time_factor(self) -> float | None:
        """The time to generate the answer, divided by the duration of its audio.

        Playback is not interrupted if this value is below 1.
        """
        return self.last_event_s / self.reply.audio_s if self.reply.pcm16 else None


@dataclass(slots=True)
class AnswerProgress:
    """The part of an answer that has been received so far."""

    text: str = ""
    pcm16: bytearray = field(default_factory=bytearray)
    sample_rate_hz: int = 0


async def measure(
    generation: AsyncGeneration, show: Callable[[AnswerProgress], None]
) -> MeasuredAnswer:
    """Read an answer until it ends and call `show` after each event."""
    clock = asyncio.get_running_loop().time
    sent_at, progress = clock(), AnswerProgress()
    events: list[Event] = []
    times: list[float] = []
    async with generation:
        async for event in generation:
            times.append(clock() - sent_at)
            events.append(event)
            _advance(progress, event, generation.sample_rate_hz)
            show(progress)
    reply = join_events(events, generation.sample_rate_hz)
    timed = list(zip(times, events, strict=True))
    texts = [at_s for at_s, event in timed if isinstance(event, TextDelta)]
    audio = [at_s for at_s, event in timed if isinstance(event, AudioDelta)]
    return MeasuredAnswer(reply, texts[0] if texts else None, tuple(audio), times[-1])


def _advance(progress: AnswerProgress, event: Event, sample_rate_hz: int) -> None:
    match event:
        case TextDelta():
            progress.text += event.text
        case AudioDelta():
            progress.pcm16 += event.pcm16
            progress.sample_rate_hz = sample_rate_hz
        case Finished():
            pass
