"""What vLLM is asked for, in our terms."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from antiphon.sampling import Sampling
from services.thinker.audio import AudioFeatures


@dataclass(frozen=True, slots=True)
class Order:
    """One request: at most `limit` ids, or up to `stop_id`, after a prompt.

    `number` is ours, for vLLM makes its own ids of what it is given. `ids` int32 [n] have
    one placeholder for each recording of `audio`; the hidden rows at `row_positions` of the
    prompt must leave.
    """

    number: int
    ids: npt.NDArray[np.int32]
    audio: AudioFeatures | None
    row_positions: npt.NDArray[np.intp]
    sampling: Sampling
    stop_id: int
    limit: int
