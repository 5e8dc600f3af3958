"""Requests to vLLM in antiphon's terms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from antiphon.values.sampling import Sampling


class Media(Protocol):
    """A prompt's audio, images and videos."""

    @property
    def takes_long(self) -> bool:
        """Whether `fields` is slow, so that it runs on another thread with bounded concurrency."""

    @property
    def decoded_pixels(self) -> int:
        """Pixels of all decoded images and frames."""

    def fields(self) -> dict[str, Any]:
        """Return the fields of vLLM's prompt besides the ids.

        Raises `InvalidArgument` for media that cannot be decoded.
        """


@dataclass(frozen=True, slots=True)
class VllmOrder:
    """One request: at most `limit` ids, or up to `stop_id`, after a prompt.

    `number` is antiphon's, since vLLM derives its own ids from those given. `ids` int32 [n] have
    one placeholder for each item of `media`. Hidden rows are sent for `row_positions` of the
    prompt, and for all positions from `reply_rows_from` on, where the reply begins, unless that is
    None.
    """

    number: int
    ids: npt.NDArray[np.int32]
    media: Media
    row_positions: npt.NDArray[np.intp]
    sampling: Sampling
    stop_id: int
    limit: int
    reply_rows_from: int | None = None
