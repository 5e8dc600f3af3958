"""What vLLM is asked for, in our terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from antiphon.values.sampling import Sampling


class Media(Protocol):
    """What is heard and seen in a prompt."""

    @property
    def takes_long(self) -> bool:
        """Whether `fields` does, so that it runs beside the loop, and few at a time."""

    @property
    def decoded_pixels(self) -> int:
        """Pixels of all images and frames when they are decoded."""

    def fields(self) -> dict[str, Any]:
        """What stands beside the ids in vLLM's prompt.

        Raises `InvalidArgument` for what cannot be decoded.
        """


@dataclass(frozen=True, slots=True)
class VllmOrder:
    """One request: at most `limit` ids, or up to `stop_id`, after a prompt.

    `number` is ours, for vLLM makes its own ids of what it is given. `ids` int32 [n] have
    one placeholder for each recording, image and video of `media`; the hidden rows at
    `row_positions` of the prompt must leave, and all from position `reply_rows_from` on, where
    the reply begins, unless that is None.
    """

    number: int
    ids: npt.NDArray[np.int32]
    media: Media
    row_positions: npt.NDArray[np.intp]
    sampling: Sampling
    stop_id: int
    limit: int
    reply_rows_from: int | None = None
