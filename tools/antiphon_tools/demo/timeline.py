"""Places a conversation on a single time axis.

The listener waits for the end of each answer. The stage times and the time of the first audio were
measured during the turn. The audio then plays at normal speed, and the next question follows after
a pause. Stages report their times in seconds since they opened the turn. This happens within
milliseconds of the request, so the delay is ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from antiphon.client.reply import BYTES_PER_SAMPLE
from antiphon_tools.demo.script import ScriptTurn

PAUSE_S = 0.6


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """A stage's work on a turn, from its first input to its last output."""

    stage: str
    first_input_s: float
    first_output_s: float
    last_output_s: float


@dataclass(frozen=True, slots=True)
class PlacedTurn:
    """A turn and its times on the time axis, in seconds."""

    turn: ScriptTurn
    asked_s: float
    sound_s: float
    end_s: float
    spans: tuple[TimelineSpan, ...]
    arrivals_s: tuple[float, ...]


def place_turns(turns: Iterable[ScriptTurn]) -> list[PlacedTurn]:
    """Place the turns one after another."""
    placed: list[PlacedTurn] = []
    asked_s = 0.0
    for turn in turns:
        placed.append(_place(turn, asked_s))
        asked_s = placed[-1].end_s + PAUSE_S
    return placed


def _place(turn: ScriptTurn, asked_s: float) -> PlacedTurn:
    answer = turn.answer
    sound_s = asked_s + (answer.first_audio_s or 0.0)
    return PlacedTurn(
        turn=turn,
        asked_s=asked_s,
        sound_s=sound_s,
        end_s=max(sound_s + answer.reply.audio_s, asked_s + answer.last_event_s),
        spans=tuple(_spans(turn, asked_s)),
        arrivals_s=tuple(asked_s + at_s for at_s in answer.audio_times),
    )


def _spans(turn: ScriptTurn, asked_s: float) -> Iterator[TimelineSpan]:
    for stage, report in turn.answer.reply.reports.items():
        if report.last_output_s > 0:
            times = (report.first_input_s, report.first_output_s, report.last_output_s)
            yield TimelineSpan(stage, *(asked_s + at_s for at_s in times))


def conversation_pcm16(placed: Sequence[PlacedTurn], sample_rate_hz: int) -> bytes:
    """Return the audio of all turns as 16-bit little-endian mono, with silence between the
    turns.
    """
    end_s = max((each.end_s for each in placed), default=0.0)
    whole = bytearray(BYTES_PER_SAMPLE * (round(end_s * sample_rate_hz) + 1))
    for each in placed:
        pcm16 = each.turn.answer.reply.pcm16
        start = BYTES_PER_SAMPLE * round(each.sound_s * sample_rate_hz)
        whole[start : start + len(pcm16)] = pcm16
    return bytes(whole)
