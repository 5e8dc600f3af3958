"""What a client has of a segment that was begun in another session, from which stages go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IDS, FRAMES, LATENTS = "ids", "frames", "latents"
"""What a stage can go on from, as it tells in `Describe`."""
MAX_HISTORY_BYTES = 4 << 20
"""Of all parts together: hours of speech in codes."""


def _no_ids() -> npt.NDArray[np.int32]:
    return np.empty(0, np.int32)


def _no_frames() -> npt.NDArray[np.uint16]:
    return np.empty((0, 0), np.uint16)


def _no_latents() -> npt.NDArray[np.float32]:
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Ids of the reply [n], codec frames [n, groups] and frames of floats [n, width], each from
    the first on. A stage makes frames of one kind; see `StageFacts.frame_dtype`.

    A stage that goes on from them takes them as its own output, which it makes known as ever, and
    makes what follows.
    """

    ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    frames: npt.NDArray[np.uint16] = field(default_factory=_no_frames)
    latents: npt.NDArray[np.float32] = field(default_factory=_no_latents)

    @property
    def size_bytes(self) -> int:
        """Of all parts."""
        return self.ids.nbytes + self.frames.nbytes + self.latents.nbytes
