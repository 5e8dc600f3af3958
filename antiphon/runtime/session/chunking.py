"""How a segment's output is cut into chunks: pure functions of counts.

The rule knows only how many positions there are, how many were sent, and whether
the segment has finished, so it cannot get out of step between segments.
"""

from __future__ import annotations

from antiphon.values.segment import ChunkPolicy


def next_boundary(sent: int, policy: ChunkPolicy) -> int:
    """The number of positions at which the chunk that starts at `sent` is full.

    Boundaries lie at first, first + ramp[0], ..., then every `steady` positions.
    """
    boundary = 0
    for size in (policy.first, *policy.ramp):
        boundary += size
        if sent < boundary:
            return boundary
    return boundary + ((sent - boundary) // policy.steady + 1) * policy.steady


def due(total: int, sent: int, *, finished: bool, policy: ChunkPolicy) -> list[int]:
    """Sizes of the chunks to send now, when `total` positions exist and `sent` went out.

    Full chunks go at once; what is left goes when the segment has finished. When
    nothing is left a finished segment needs a bare finish, which is not a size.
    """
    sizes = []
    while (boundary := next_boundary(sent, policy)) <= total:
        sizes.append(boundary - sent)
        sent = boundary
    if finished and sent < total:
        sizes.append(total - sent)
    return sizes
