"""Chooses which frames are decoded together. The functions of this module have no side effects.

The vendor's code decodes `SEGMENT_FRAMES` frames at a time, independently of all other frames. If
the input is delivered whole, the same segments are decoded here. A stream is split into blocks,
which are decoded together with additional frames before and after them. The positions of blocks
depend only on the number of frames, so the samples do not depend on arrival times.
"""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT_FRAMES = 1500


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """A window, which decodes the frames from `left` to `right`.

    Only the samples of the frames from `first` to `stop` are used.
    """

    left: int
    first: int
    stop: int
    right: int


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Splits frames into blocks of `block` frames with up to `before` and `after` frames of
    context.

    If `block` is None, complete segments are decoded.
    """

    block: int | None
    before: int = 0
    after: int = 0

    def following(self, sent: int, come: int, *, finished: bool) -> DecodeWindow | None:
        """Return the window that follows the first `sent` frames, or None if it is incomplete.

        `come` is the number of frames that have arrived. `finished` is true if no more frames
        follow.
        """
        start = sent - sent % SEGMENT_FRAMES
        end = start + SEGMENT_FRAMES
        if finished:
            end = min(end, come)
        if self.block is None:
            return DecodeWindow(start, sent, end, end) if finished and sent < end else None
        stop = min(sent + self.block, end)
        right = min(stop + self.after, end)
        if sent == stop or right > come:
            return None
        return DecodeWindow(max(start, sent - self.before), sent, stop, right)
