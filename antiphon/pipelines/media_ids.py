"""The placeholder IDs in a prompt for audio, images and videos."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt


class MediaIds(Protocol):
    """The placeholder ID for each type of media."""

    @property
    def audio(self) -> int:
        """The placeholder ID for audio positions."""

    @property
    def image(self) -> int:
        """The placeholder ID for image positions."""

    @property
    def video(self) -> int:
        """The placeholder ID for video positions."""


def is_media(ids: npt.NDArray[np.int32], special: MediaIds) -> npt.NDArray[np.bool_]:
    """Return a bool array of the same shape that marks the IDs that are media placeholders."""
    # For short prompts, `np.isin` would take five times as long.
    found: npt.NDArray[np.bool_] = ids == special.audio
    found |= (ids == special.image) | (ids == special.video)
    return found
