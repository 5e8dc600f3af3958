"""Choose the frames that are decoded together. Pure.

The vendor's code decodes `SEGMENT_FRAMES` frames at a time, independently of all others. `whole`
delivery decodes the same segments. A stream is decoded in blocks, each with frames of its segment
before and after it. The positions of blocks depend only on the number of frames, so that their
samples do not depend on arrival times.
"""

from __future__ import annotations

from dataclasses import dataclass

SEGMENT_FRAMES = 1500


@dataclass(frozen=True, slots=True)
class DecodeWindow:
    """Samples of the frames `first` to `stop` are made of those from `left` to `right`."""

    left: int
    first: int
    stop: int
    right: int


@dataclass(frozen=True, slots=True)
class WindowPlan:
    """Blocks of `block` frames, with `before` and `after` more; without a block, whole segments."""

    block: int | None
    before: int = 0
    after: int = 0

    def following(self, sent: int, come: int, *, finished: bool) -> DecodeWindow | None:
        """Return the window after the first `sent` frames, or None if it is incomplete.

        `come` frames have arrived, which are all frames if `finished`.
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
