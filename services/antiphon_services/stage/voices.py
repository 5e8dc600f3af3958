"""Selects a segment's voice."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import InvalidArgument


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
