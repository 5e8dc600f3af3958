"""Model options, which are additional request settings such as a language, an instruction or a
reference recording.

Options are declared by the pipeline and listed in the response to `Describe`. Both the gateway and
the stages validate values against this description.
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
"""The option that selects what a multi-task model does, such as speech synthesis or transcription.

If the task is one of its choices, /v1/audio/speech sets it to `SPEECH`, /v1/audio/transcriptions
sets it to `TRANSCRIPTION`, and /v1/images/generations sets it to `IMAGE`.
"""
DIALOGUE, SPEECH, TRANSCRIPTION, IMAGE = "dialogue", "speech", "transcription", "image"

SIZE = "size"
"""The option whose choices are the sizes of generated images, such as "512x512".

It is set by /v1/images/generations. If a model doesn't have this option, all of its images have the
same size.
"""

OptionValue = str | float | Tensor
"""A text, a number or a recording. A recording is a mono float32 vector at the option's sample
rate.
"""


class OptionKind(enum.Enum):
    """The type of an option's value. The members correspond to those of
    `antiphon.v1.OptionKind`.
    """

    TEXT = "text"
    NUMBER = "number"
    AUDIO = "audio"


@dataclass(frozen=True, slots=True)
class Option:
    """The description of an option.

    A text can have up to `max_bytes` bytes in UTF-8. If there are `choices`, it must be one of
    them, ignoring case. A number must be between `least` and `most`. A recording can be up to
    `max_s` seconds long, at `sample_rate_hz`. One additional sample is allowed, because resampling
    rounds up. If `instructs` is true, the text describes how to speak. A pipeline can have at most
    one such option. A checkpoint can replace the description through `StageFacts.options`.
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
        """Raise `InvalidArgument` if the value has the wrong type or is outside the option's
        limits.

        The error refers to `field`, which defaults to `options.<name>`.
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
            raise _refused(field, "must be a string", value)
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
            raise InvalidArgument(f"{field}: contains NaN or infinity", field=field)


def does_task(options: Iterable[Option], task: str) -> bool:
    """Return whether the options include `TASK` with the given choice."""
    return any(each.name == TASK and task in each.choices for each in options)


def _refused(field: str, wanted: str, value: OptionValue) -> InvalidArgument:
    shown = "a recording" if isinstance(value, np.ndarray) else told(value)
    return InvalidArgument(f"{field}: {wanted}, got {shown}", field=field)
