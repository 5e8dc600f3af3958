"""Pure functions that decide where a segment's output is split into chunks.

The result depends only on how many positions have been produced, how many have been sent, and
whether the segment has finished. Since no state is kept, nothing can leak from one segment into the
next.
"""

from __future__ import annotations

from antiphon.values.segment import ChunkPolicy


def next_boundary(sent: int, policy: ChunkPolicy) -> int:
    """Return the position at which a chunk that starts at `sent` is full.

    The first boundary is at `first`, the next one at `first + ramp[0]`, and so on. After the ramp,
    there is a boundary every `steady` positions.
    """
    boundary = 0
    for size in (policy.first, *policy.ramp):
        boundary += size
        if sent < boundary:
            return boundary
    return boundary + ((sent - boundary) // policy.steady + 1) * policy.steady


def due(total: int, sent: int, *, finished: bool, policy: ChunkPolicy) -> list[int]:
    """Return the sizes of the chunks that can be sent now, given that `total` positions exist and
    `sent` have been sent.

    Full chunks are sent immediately, and any remaining positions are sent when the segment has
    finished. If nothing remains at that point, the result is empty, and the caller sends an empty
    final chunk.
    """
    sizes = []
    while (boundary := next_boundary(sent, policy)) <= total:
        sizes.append(boundary - sent)
        sent = boundary
    if finished and sent < total:
        sizes.append(total - sent)
    return sizes
