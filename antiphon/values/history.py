"""The part of a segment that a client already received in another session, to be continued."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IDS, FRAMES, LATENTS = "ids", "frames", "latents"
"""Kinds of history that a stage can continue from, as listed in `Describe`."""
MAX_HISTORY_BYTES = 4 << 20
"""Limit of all parts together: hours of speech in codes."""


def _no_ids() -> npt.NDArray[np.int32]:
    return np.empty(0, np.int32)


def _no_frames() -> npt.NDArray[np.uint16]:
    return np.empty((0, 0), np.uint16)


def _no_latents() -> npt.NDArray[np.float32]:
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Reply ids [n], codec frames [n, groups] and latent frames [n, width], each from the first.

    A stage produces frames of one kind; see `StageFacts.frame_dtype`. It treats the history as its
    own output, sends it as usual, and continues from there.
    """

    ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    frames: npt.NDArray[np.uint16] = field(default_factory=_no_frames)
    latents: npt.NDArray[np.float32] = field(default_factory=_no_latents)

    @property
    def size_bytes(self) -> int:
        """Bytes of all parts."""
        return self.ids.nbytes + self.frames.nbytes + self.latents.nbytes
