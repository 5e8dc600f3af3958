"""An answer of the reference, which stages are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.values.history import History

KEPT_LOGPROBS = 20
"""Of the reference's likeliest ids at each position: as many as a stage reports."""


Frames = npt.NDArray[np.uint16] | npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Truth:
    """One answer of the reference.

    `ids` int32 [N]; `top_ids` int32 and `top_logprobs` float32 [N, 20], the likeliest first, and
    `gaps` float32 [N] between the two highest logits, NaN where they are unknown: all are empty for
    a model without text. `codes` are the frames, uint16 or float32 [T, groups]; `samples` float32,
    decoded in float32 from all codes at once. Where one stage makes ids and frames,
    `frames_before` int32 [N] counts the frames before each id.
    """

    question: str
    ids: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    gaps: npt.NDArray[np.float32]
    codes: Frames
    samples: npt.NDArray[np.float32]
    frames_before: npt.NDArray[np.int32] | None = None

    def before(self, place: int) -> History:
        """The answer up to the id at a place, which is drawn again: the last id of a history is."""
        ids = np.ascontiguousarray(self.ids[: place + 1])
        if self.frames_before is None:
            return History(ids=ids)
        return History(ids=ids, frames=self.codes[: self.frames_before[place]].astype(np.uint16))
