"""The voice in a JSON body. It is given as a name or as an object."""

from __future__ import annotations

import msgspec


class VoiceId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A voice, identified by its ID."""

    id: str


def voice_name(given: str | VoiceId) -> str:
    """Return the name of the voice, or an empty string for the default voice."""
    return given if isinstance(given, str) else given.id
