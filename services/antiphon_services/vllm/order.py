"""antiphon's representation of requests to vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from antiphon.values.sampling import Sampling


class Media(Protocol):
    """The audio, images and videos of a prompt."""

    @property
    def takes_long(self) -> bool:
        """Whether `fields` is slow. If so, it runs on another thread with limited concurrency."""

    @property
    def decoded_pixels(self) -> int:
        """The total number of pixels in all decoded images and frames."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of vLLM's prompt other than the IDs.

        Raises `InvalidArgument` if media cannot be decoded.
        """


@dataclass(frozen=True, slots=True)
class VllmOrder:
    """A request for up to `limit` IDs after a prompt. It ends earlier at `stop_id`.

    `number` identifies the request within antiphon, because vLLM derives a new ID from each request
    ID that it receives. `ids` (int32 [n]) contains one placeholder for each item of `media`. Hidden
    rows are sent for the prompt positions in `row_positions`. If `reply_rows_from` is not None,
    they are also sent for all positions from there onwards, which is where the reply begins.
    """

    number: int
    ids: npt.NDArray[np.int32]
    media: Media
    row_positions: npt.NDArray[np.intp]
    sampling: Sampling
    stop_id: int
    limit: int
    reply_rows_from: int | None = None
