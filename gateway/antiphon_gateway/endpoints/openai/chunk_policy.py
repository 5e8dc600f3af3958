"""The JSON form of the setting that controls how codec frames are grouped into chunks."""

from __future__ import annotations

import msgspec

from antiphon.values.segment import ChunkPolicy
from antiphon.wire.convert import checked_policy


class ChunkPolicyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The number of codec frames per audio chunk. This extends OpenAI's API."""

    first: int
    ramp: tuple[int, ...]
    steady: int


def read_chunk_policy(given: ChunkPolicyOptions | None) -> ChunkPolicy | None:
    """Return the policy, or None if it is not set. Raises `InvalidArgument` if a size is out of
    range.
    """
    if given is None:
        return None
    return checked_policy(ChunkPolicy(given.first, given.ramp, given.steady))
