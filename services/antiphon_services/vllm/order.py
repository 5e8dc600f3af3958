"""The form in which antiphon represents requests to vLLM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from antiphon.values.sampling import Sampling


class Media(Protocol):
    """The audio, images and videos in a prompt."""

    @property
    def takes_long(self) -> bool:
        """Whether `fields` is slow. If so, it runs on another thread, with limited concurrency."""

    @property
    def decoded_pixels(self) -> int:
        """The total number of pixels in all decoded images and frames."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of vLLM's prompt, except for the IDs.

        Raises `InvalidArgument` if media can't be decoded.
        """


@dataclass(frozen=True, slots=True)
class VllmOrder:
    """A request to generate up to `limit` IDs after a prompt. It ends earlier if `stop_id` is
    generated.

    `number` identifies the request within antiphon, because vLLM derives a new ID from each request
    ID that it receives. `ids` (int32 [n]) contains a single placeholder for each item of `media`.
    Hidden rows are sent for the prompt positions in `row_positions`. If `reply_rows_from` is not
    None, rows are also sent for all positions from there onwards. This is the position where the
    reply begins.
    """

    number: int
    ids: npt.NDArray[np.int32]
    media: Media
    row_positions: npt.NDArray[np.intp]
    sampling: Sampling
    stop_id: int
    limit: int
    reply_rows_from: int | None = None
