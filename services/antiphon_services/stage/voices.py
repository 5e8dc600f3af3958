"""Voice selection of a segment."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.errors import InvalidArgument


def choose_voice(asked: str, voices: Sequence[str]) -> str:
    """Return the requested voice, or the default, which is the first.

    `voices` are lower-case names. Raises `InvalidArgument` for an unknown one.
    """
    voice = asked.lower() or voices[0]
    if voice not in voices:
        raise InvalidArgument(
            f"voice: {asked!r} is unknown; there are {', '.join(voices)}", field="voice"
        )
    return voice
