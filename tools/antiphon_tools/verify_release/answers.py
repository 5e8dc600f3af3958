"""The reference's answers. The output of the stages is compared with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.values.history import History

KEPT_LOGPROBS = 20
"""The number of most likely tokens to keep at each position of the reference. Stages are asked for
the same number.
"""


Frames = npt.NDArray[np.uint16] | npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Truth:
    """An answer of the reference.

    `ids` is an int32 array of shape [N]. `top_ids` (int32) and `top_logprobs` (float32) have the
    shape [N, 20] and contain the most likely tokens in descending order. `gaps` is a float32 array
    of shape [N] that contains the differences between the two highest logits, or NaN if they are
    not known. These arrays are empty for a model without text.

    `codes` contains the frames, as a uint16 or float32 array of shape [T, groups]. `samples`
    contains float32 samples, which were decoded in float32 from all codes at once. If one stage
    generates both tokens and frames, `frames_before`, an int32 array of shape [N], contains the
    number of frames before each token.
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
        """Return the history of the answer up to the token at `place`. This token is drawn again.

        The last token of a history is always drawn again.
        """
        ids = np.ascontiguousarray(self.ids[: place + 1])
        if self.frames_before is None:
            return History(ids=ids)
        return History(ids=ids, frames=self.codes[: self.frames_before[place]].astype(np.uint16))
