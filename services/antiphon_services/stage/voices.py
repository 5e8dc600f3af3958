"""Reads the voice that a request selects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.errors import InvalidArgument
from antiphon.values.options import OptionValue


def choose_voice(asked: str, voices: Sequence[str]) -> str:
    """Return the requested voice, or the first voice if none is requested.

    `voices` contains names in lower case. Raises `InvalidArgument` if the voice is unknown.
    """
    voice = asked.lower() or voices[0]
    if voice not in voices:
        raise InvalidArgument(
            f"voice: unknown voice {asked!r}; use one of: {', '.join(voices)}", field="voice"
        )
    return voice


def text_option(options: Mapping[str, OptionValue], name: str) -> str:
    """Return the value of a text option, or an empty text if it is not set."""
    value = options.get(name, "")
    assert isinstance(value, str), "the runtime checks options"
    return value
