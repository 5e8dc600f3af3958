"""What vLLM is asked for, in our terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from antiphon.sampling import Sampling
from services.qwen3_omni.thinker.audio import AudioFeatures

if TYPE_CHECKING:
    from services.qwen3_omni.thinker.vision import Visual


@dataclass(frozen=True, slots=True)
class Order:
    """One request: at most `limit` ids, or up to `stop_id`, after a prompt.

    `number` is ours, for vLLM makes its own ids of what it is given. `ids` int32 [n] have
    one placeholder for each recording of `audio` and each of `visuals`; the hidden rows at
    `row_positions` of the prompt must leave.
    """

    number: int
    ids: npt.NDArray[np.int32]
    audio: AudioFeatures | None
    visuals: Sequence[Visual]
    row_positions: npt.NDArray[np.intp]
    sampling: Sampling
    stop_id: int
    limit: int
