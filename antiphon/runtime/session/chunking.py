"""Pure functions that determine the chunk boundaries of a segment's output.

Their inputs are the number of positions that have been produced, the number that have been sent,
and whether the segment has finished. They keep no state, so nothing can carry over from one segment
to the next.
"""

from __future__ import annotations

from antiphon.values.segment import ChunkPolicy


def next_boundary(sent: int, policy: ChunkPolicy) -> int:
    """Return the position at which a chunk that starts at `sent` is full.

    Boundaries are at first, first + ramp[0] and so on, and then after every `steady` positions.
    """
    boundary = 0
    for size in (policy.first, *policy.ramp):
        boundary += size
        if sent < boundary:
            return boundary
    return boundary + ((sent - boundary) // policy.steady + 1) * policy.steady


def due(total: int, sent: int, *, finished: bool, policy: ChunkPolicy) -> list[int]:
    """Return the sizes of the chunks to send now, if `total` positions exist and `sent` have been
    sent.

    Full chunks are sent immediately. The remaining positions are sent when the segment has
    finished. If a finished segment has no remaining positions, the result is empty, and the caller
    sends an empty final chunk.
    """
    sizes = []
    while (boundary := next_boundary(sent, policy)) <= total:
        sizes.append(boundary - sent)
        sent = boundary
    if finished and sent < total:
        sizes.append(total - sent)
    return sizes
