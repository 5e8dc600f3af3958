"""An answer of the reference, which stages are compared with."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

KEPT_LOGPROBS = 20
"""Of the reference's likeliest ids at each position: as many as a stage reports."""


@dataclass(frozen=True, slots=True)
class Truth:
    """One answer of the reference.

    `ids` int32 [N]; `top_ids` int32 and `top_logprobs` float32 [N, 20], the likeliest first, and
    `gaps` float32 [N] between the two highest logits: all are empty for a model without text.
    `codes` uint16 [T, groups]; `samples` float32, decoded in float32 from all codes at once.
    """

    question: str
    ids: npt.NDArray[np.int32]
    top_ids: npt.NDArray[np.int32]
    top_logprobs: npt.NDArray[np.float32]
    gaps: npt.NDArray[np.float32]
    codes: npt.NDArray[np.uint16]
    samples: npt.NDArray[np.float32]
