"""How a JSON body names a voice: plainly, or as an object."""

from __future__ import annotations

import msgspec


class VoiceId(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A voice by id."""

    id: str


def voice_name(given: str | VoiceId) -> str:
    """The voice's name; empty if the default is wanted."""
    return given if isinstance(given, str) else given.id
