"""The received part of an answer and how it differs from the expected answer."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon.errors import AntiphonError
from antiphon_tools.load.player import Piece, underrun

TOLERANCE = 1e-4
"""The permitted difference between samples. It is not zero because chunks may be decoded in
different calls.
"""


@dataclass(slots=True)
class Heard:
    """The received part of an answer and the arrival times of its audio."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    codes: bytes = b""
    samples: list[NDArray[np.float32]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    error: AntiphonError | None = None
    asked_at: float = field(default_factory=time.monotonic)
    # Whether the answer's gateway was lost and another gateway continued the answer.
    resumed: bool = False

    @property
    def audio(self) -> NDArray[np.float32]:
        """All samples received so far."""
        return np.concatenate(self.samples) if self.samples else np.empty(0, np.float32)

    @property
    def first_after_s(self) -> float:
        """The time until the first audio arrived, or 0 if none has arrived."""
        return self.pieces[0][0] - self.asked_at if self.pieces else 0.0

    @property
    def underrun_s(self) -> float:
        """The maximum delay of the audio during playback, as described in
        `antiphon_tools.load.player`.
        """
        return underrun(self.pieces)

    def difference(self, expected: Heard) -> str:
        """Describe the difference from the expected answer. Returns an empty string if there is
        none.

        An answer that ended with an error must be a prefix of the expected answer.
        """
        whole = self.error is None
        audio, other = self.audio, expected.audio
        if len(audio) > len(other) or (whole and len(audio) < len(other)):
            return f"{len(audio)} samples instead of {len(other)}"
        if len(audio) and (far := np.abs(audio - other[: len(audio)])).max() > TOLERANCE:
            return f"sample {int(far.argmax())} differs by {far.max():.2g}"
        if not _begins(expected.codes, self.codes, whole=whole):
            return "other codec frames"
        if not _begins(expected.text, self.text, whole=whole):
            return f"the text {self.text!r} instead of {expected.text!r}"
        if self.ids != expected.ids[: len(self.ids)]:
            return "other token ids"
        return ""


def _begins(expected: str | bytes, found: str | bytes, *, whole: bool) -> bool:
    return found == (expected if whole else expected[: len(found)])
