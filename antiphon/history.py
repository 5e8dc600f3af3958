"""What a client has of a segment that was begun in another session, from which stages go on."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

IDS, FRAMES = "ids", "frames"
"""What a stage can go on from, as it tells in `Describe`."""
MAX_HISTORY_BYTES = 4 << 20
"""Of ids and frames together: hours of speech."""


def _no_ids() -> npt.NDArray[np.int32]:
    return np.empty(0, np.int32)


def _no_frames() -> npt.NDArray[np.uint16]:
    return np.empty((0, 0), np.uint16)


@dataclass(frozen=True, slots=True, eq=False)
class History:
    """Ids of the reply [n] and codec frames [n, groups], both from the first on.

    A stage that goes on from them takes them as its own output, which it makes known as ever, and
    makes what follows.
    """

    ids: npt.NDArray[np.int32] = field(default_factory=_no_ids)
    frames: npt.NDArray[np.uint16] = field(default_factory=_no_frames)

    @property
    def size_bytes(self) -> int:
        """Of ids and frames."""
        return self.ids.nbytes + self.frames.nbytes
