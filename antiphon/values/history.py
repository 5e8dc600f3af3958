"""The part of a segment that the client has already received in another session, and after which a
new session continues.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IDS, FRAMES, LATENTS = "ids", "frames", "latents"
"""The types of history from which a stage can continue, as listed in `Describe`."""
MAX_HISTORY_BYTES = 4 << 20
"""The maximum total size of all parts. This is enough for the codes of several hours of speech."""


def _no_ids() -> npt.NDArray[np.int32]:
    return np.empty(0, np.int32)


def _no_frames() -> npt.NDArray[np.uint16]:
    return np.empty((0, 0), np.uint16)


def _no_latents() -> npt.NDArray[np.float32]:
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The history of a segment, from its beginning.

    It consists of reply IDs of shape [n], codec frames of shape [n, groups] and latent frames of
    shape [n, width]. A stage produces only one type of frame, as indicated by
    `StageFacts.frame_dtype`. It treats the history as its own output, sends it as usual, and
    continues after it.
    """

    ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    frames: npt.NDArray[np.uint16] = field(default_factory=_no_frames)
    latents: npt.NDArray[np.float32] = field(default_factory=_no_latents)

    @property
    def size_bytes(self) -> int:
        """The total size of all parts in bytes."""
        return self.ids.nbytes + self.frames.nbytes + self.latents.nbytes
