"""The JSON form of the grouping of codec frames into chunks."""

from __future__ import annotations

import msgspec

from antiphon.values.segment import ChunkPolicy
from antiphon.wire.convert import checked_policy


class ChunkPolicyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Codec frames per audio chunk; an addition to OpenAI's fields."""

    first: int
    ramp: tuple[int, ...]
    steady: int


def read_chunk_policy(given: ChunkPolicyOptions | None) -> ChunkPolicy | None:
    """The policy; None when none is given. Raises `InvalidArgument` for a size out of range."""
    if given is None:
        return None
    return checked_policy(ChunkPolicy(given.first, given.ramp, given.steady))
