"""A model of a client's audio player. It determines whether playback is interrupted.

The player starts with the first piece. If it has played everything before the next piece arrives,
it runs short of audio. The underrun is the longest such shortage during an answer. For a player
that pauses whenever it runs out of audio, this is also the total duration of all pauses and the
initial delay that would have prevented them.
"""

from __future__ import annotations

from collections.abc import Iterable

Piece = tuple[float, float]
"""The arrival time and the duration of a piece of audio, both in seconds."""


def underrun(pieces: Iterable[Piece]) -> float:
    """Return the longest shortage in seconds, or 0 if playback is never interrupted."""
    worst, received_s, started_at = 0.0, 0.0, None
    for at_s, seconds in pieces:
        if started_at is None:
            started_at = at_s
        worst = max(worst, at_s - started_at - received_s)
        received_s += seconds
    return worst


def plays_on(underrun_s: float, buffer_s: float) -> bool:
    """Return whether playback is uninterrupted if it starts `buffer_s` after the first piece."""
    return underrun_s <= buffer_s
