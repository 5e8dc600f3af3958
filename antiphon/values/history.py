"""The part of a segment that the client has already received in another session. A new session
continues after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IDS, FRAMES, LATENTS = "ids", "frames", "latents"
"""The types of history from which a stage can continue. `Describe` reports which of them a stage
supports.
"""
MAX_HISTORY_BYTES = 4 << 20
"""The maximum total size of all parts, in bytes. It is large enough for the codes of several hours
of speech.
"""


def _no_ids() -> npt.NDArray[np.int32]:
    return np.empty(0, np.int32)


def _no_frames() -> npt.NDArray[np.uint16]:
    return np.empty((0, 0), np.uint16)


def _no_latents() -> npt.NDArray[np.float32]:
    return np.empty((0, 0), np.float32)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """The beginning of a segment that was generated elsewhere.

    It consists of reply IDs with the shape [n], codec frames with the shape [n, groups] and latent
    frames with the shape [n, width]. Each stage produces only one type of frame, which is given by
    `StageFacts.frame_dtype`. The stage treats the history as if it were its own output. It sends
    the history as usual and then continues after it.
    """

    ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    frames: npt.NDArray[np.uint16] = field(default_factory=_no_frames)
    latents: npt.NDArray[np.float32] = field(default_factory=_no_latents)

    @property
    def size_bytes(self) -> int:
        """The total size of all parts in bytes."""
        return self.ids.nbytes + self.frames.nbytes + self.latents.nbytes
