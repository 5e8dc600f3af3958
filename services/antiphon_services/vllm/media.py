"""Limits on the number of recordings, images and videos in a conversation.

vLLM only builds a tower if media of its type are allowed, and it reserves memory for the largest
media that are possible. If a stage is only used for speech, setting `limit_mm_per_prompt: {image:
0, video: 0}` therefore saves memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from antiphon.errors import InvalidArgument

ARGUMENT = "limit_mm_per_prompt"
"""The engine argument that contains the limits."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The maximum number of items of each type in a conversation. The fields have the same names as
    in vLLM.
    """

    audio: int = 256
    image: int = 64
    video: int = 8

    @property
    def sees(self) -> bool:
        """Whether images or videos are allowed."""
        return self.image > 0 or self.video > 0


def media_limits(given: Mapping[str, Any], *, hears: bool, sees: bool) -> MediaLimits:
    """Return the limits from a stage's `engine_args`.

    `hears` and `sees` specify what the checkpoint and the other arguments support. Raises
    `InvalidArgument` if a limit is invalid, or if it is greater than 0 for a type that isn't
    supported.
    """
    possible = {"audio": hears, "image": sees, "video": sees}
    limits = {name: most * possible[name] for name, most in asdict(MediaLimits()).items()}
    limit_argument = given.get(ARGUMENT, {})
    if not isinstance(limit_argument, Mapping):
        raise _wrong("must be a mapping")
    for name, most in limit_argument.items():
        if name not in limits:
            raise _wrong(f"unknown kind {name!r}; use one of: {', '.join(limits)}")
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise _wrong(f"{name}: must be a number of at least 0, got {most!r}")
        if most and not possible[name]:
            raise _wrong(
                f"{name}: must be 0, because the checkpoint has no tower for it, or "
                "pipeline_parallel_size is above 1"
            )
        limits[name] = most
    return MediaLimits(**limits)


def _wrong(why: str) -> InvalidArgument:
    return InvalidArgument(f"engine_args: {ARGUMENT}: {why}", field="engine_args")
