"""Frames that don't have to be drawn because the client already has them, as described in
`antiphon.values.history`.

Their rows are prefilled in parts after the prompt. The next draw gives the same result as if these
frames had been drawn one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.values.history import History
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.attention import Span

Frames = npt.NDArray[Any]
"""Codes as uint16 [n, groups], or latents as float32 [n, width]."""
Prompt = TypeVar("Prompt")

ANEW = "leave the history out, and everything is recomputed"


def no_frames() -> Frames:
    """Return an empty array of known frames, for a segment that draws all of its frames."""
    return np.empty((0, 0), np.uint16)


@dataclass(frozen=True, slots=True)
class KnownPart(Generic[Prompt]):
    """Rows for known frames [n, groups] of the segment in `slot`, beginning at `position`.

    The frames belong to consecutive draws, beginning with draw `step`. Row k contains the text
    `texts[k]` and the frame before `frames[k]`. For the first row, this preceding frame is in
    `before` [0 or 1, groups], which is empty for draw 0.
    """

    key: SegmentKey
    slot: int
    position: int
    step: int
    sampling: Sampling
    texts: Sequence[Any]
    frames: Frames
    before: Frames
    prompt: Prompt

    @property
    def span(self) -> Span:
        """The span of these rows in the slot."""
        return Span(self.slot, self.position, len(self.frames))


def known_frames(history: History | None, sizes: Sequence[int]) -> Frames:
    """Return the frames in a history. The codes of group g must be below `sizes[g]`.

    Raises `InvalidArgument` if the history contains a frame that this model can't draw.
    """
    if history is None or not len(history.frames):
        return no_frames()
    frames = history.frames
    if frames.shape[1] != len(sizes):
        raise InvalidArgument(
            f"history.frames: have {frames.shape[1]} codes each, but this stage uses "
            f"{len(sizes)}; {ANEW}",
            field="history.frames",
        )
    if (frames >= np.asarray(sizes)).any():
        raise InvalidArgument(
            f"history.frames: all codes must be below {list(sizes)}; {ANEW}", field="history.frames"
        )
    return frames


def known_latents(history: History | None, width: int) -> Frames:
    """Return the latent frames in a history. Each of them has `width` values.

    Raises `InvalidArgument` if the history contains a frame that this model can't draw.
    """
    if history is None or not len(history.latents):
        return no_frames()
    latents = history.latents
    if latents.shape[1] != width:
        raise InvalidArgument(
            f"history.latents: have {latents.shape[1]} values each, but this stage uses "
            f"{width}; {ANEW}",
            field="history.latents",
        )
    if not np.isfinite(latents).all():
        raise InvalidArgument(
            f"history.latents: contain values that are not finite; {ANEW}", field="history.latents"
        )
    return latents


def check_count(frames: Frames, most: int) -> None:
    """Raise `InvalidArgument` if there are more than `most` frames, which is the limit for a
    segment.
    """
    field = "history.latents" if frames.dtype.kind == "f" else "history.frames"
    if len(frames) > most:
        raise InvalidArgument(
            f"{field}: has {len(frames)} frames, but the segment can have at most {most}; {ANEW}",
            field=field,
        )
