"""A listener's player, as a model: does it ever run out of audio? Pure.

The player starts with the first piece. Until the next piece comes it may play what it
has; if that ends earlier, it is short of audio. The worst shortage over an answer is
the underrun, and it has two more readings: a player that waits whenever it is empty
waits that long in total, and a player that starts that much later never waits.
"""

from __future__ import annotations

from collections.abc import Iterable

Piece = tuple[float, float]
"""When a piece of audio came and how long it plays, both in seconds."""


def underrun(pieces: Iterable[Piece]) -> float:
    """The worst shortage in seconds; 0 when the player never runs dry."""
    worst, received_s, started_at = 0.0, 0.0, None
    for at_s, seconds in pieces:
        if started_at is None:
            started_at = at_s
        worst = max(worst, at_s - started_at - received_s)
        received_s += seconds
    return worst


def plays_on(underrun_s: float, buffer_s: float) -> bool:
    """Whether a player that starts `buffer_s` after the first piece never runs dry."""
    return underrun_s <= buffer_s
