"""Model options: request settings beyond its messages, such as a language, an instruction or a
reference recording.

A pipeline declares them and `Describe` lists them. The gateway and the stage check values against
the same description.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from antiphon.errors import InvalidArgument, told
from antiphon.values.chunk import Tensor
from antiphon.values.sampling import utf8_size

TASK = "task"
"""Option that selects what a multi-task model does, such as speech synthesis or transcription.

If its choices include it, /v1/audio/speech sets `SPEECH`, /v1/audio/transcriptions sets
`TRANSCRIPTION`, and /v1/images/generations sets `IMAGE`."""
DIALOGUE, SPEECH, TRANSCRIPTION, IMAGE = "dialogue", "speech", "transcription", "image"

SIZE = "size"
"""Option with the sizes of generated images as choices, such as "512x512"; without one the model
makes one size. /v1/images/generations sets it."""

OptionValue = str | float | Tensor
"""Text, a number, or a recording: float32 mono [samples] at the option's rate."""


class OptionKind(enum.Enum):
    """Type of an option's value; mirrors `antiphon.v1.OptionKind`."""

    TEXT = "text"
    NUMBER = "number"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Option:
    """Description of one option.

    `choices` (case-insensitive) and `max_bytes` (UTF-8) bound text; without choices any text is
    allowed. `least` and `most` bound a number. `max_s` seconds at `sample_rate_hz` bound a
    recording, plus one sample, since resampling rounds up. Text of an option that `instructs`
    describes how to speak; a pipeline has at most one. A checkpoint may replace the description:
    see `StageFacts.options`.
    """

    name: str
    kind: OptionKind
    description: str = ""
    choices: tuple[str, ...] = ()
    max_bytes: int = 4096
    least: float = 0.0
    most: float = 0.0
    sample_rate_hz: int = 0
    max_s: float = 0.0
    instructs: bool = False

    def check(self, value: OptionValue, *, field: str = "") -> None:
        """Raise `InvalidArgument` unless the value has the option's type and is within its bounds.

        The error names `field`, by default `options.<name>`.
        """
        field = field or f"options.{self.name}"
        match self.kind:
            case OptionKind.TEXT:
                self._check_text(value, field)
            case OptionKind.NUMBER:
                self._check_number(value, field)
            case OptionKind.AUDIO:
                self._check_audio(value, field)

    def _check_text(self, value: OptionValue, field: str) -> None:
        if not isinstance(value, str):
            raise _refused(field, "must be text", value)
        if self.choices and value.casefold() not in map(str.casefold, self.choices):
            raise _refused(field, f"must be one of {', '.join(self.choices)}", value)
        if value and not 0 < utf8_size(value) <= self.max_bytes:
            raise InvalidArgument(
                f"{field}: must be at most {self.max_bytes} bytes of UTF-8", field=field
            )

    def _check_number(self, value: OptionValue, field: str) -> None:
        number = (
            value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        )
        if not self.least <= number <= self.most:
            raise _refused(field, f"must be from {self.least:g} to {self.most:g}", value)

    def _check_audio(self, value: OptionValue, field: str) -> None:
        if not isinstance(value, np.ndarray) or value.dtype != np.float32 or value.ndim != 1:
            raise InvalidArgument(f"{field}: must be a recording", field=field)
        if not 0 < len(value) <= int(self.max_s * self.sample_rate_hz) + 1:
            raise InvalidArgument(
                f"{field}: must be a recording of at most {self.max_s:g} s", field=field
            )
        if not np.isfinite(value).all():
            raise InvalidArgument(f"{field}: has NaN or Inf", field=field)


def does_task(options: Iterable[Option], task: str) -> bool:
    """Return whether the options include `TASK` with this choice."""
    return any(each.name == TASK and task in each.choices for each in options)


def _refused(field: str, wanted: str, value: OptionValue) -> InvalidArgument:
    shown = "a recording" if isinstance(value, np.ndarray) else told(value)
    return InvalidArgument(f"{field}: {wanted}, is {shown}", field=field)
