"""Chunk boundaries of a segment's output: pure functions of counts.

Inputs are the number of positions produced, the number sent and whether the segment has finished.
No state is kept, so nothing can carry over from one segment to the next.
"""

from __future__ import annotations

from antiphon.values.segment import ChunkPolicy


def next_boundary(sent: int, policy: ChunkPolicy) -> int:
    """Return the position at which the chunk that starts at `sent` is full.

    Boundaries lie at first, first + ramp[0], ..., then every `steady` positions.
    """
    boundary = 0
    for size in (policy.first, *policy.ramp):
        boundary += size
        if sent < boundary:
            return boundary
    return boundary + ((sent - boundary) // policy.steady + 1) * policy.steady


def due(total: int, sent: int, *, finished: bool, policy: ChunkPolicy) -> list[int]:
    """Return the sizes of the chunks to send now, given `total` positions and `sent` already sent.

    Full chunks are sent at once. The remainder is sent when the segment has finished. A finished
    segment without remainder yields no size; the caller then sends an empty final chunk.
    """
    sizes = []
    while (boundary := next_boundary(sent, policy)) <= total:
        sizes.append(boundary - sent)
        sent = boundary
    if finished and sent < total:
        sizes.append(total - sent)
    return sizes
