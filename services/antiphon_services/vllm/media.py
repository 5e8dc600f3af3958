"""How many recordings, images and videos one conversation may have.

vLLM builds a tower only for what may come, and sizes its memory for the largest: so a
stage for speech alone saves by `limit_mm_per_prompt: {image: 0, video: 0}`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from antiphon.errors import InvalidArgument

ARGUMENT = "limit_mm_per_prompt"
"""The engine argument by which an operator lowers or raises a limit."""


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """The most of each in one conversation; the fields have vLLM's names."""

    audio: int = 256
    image: int = 64
    video: int = 8

    @property
    def sees(self) -> bool:
        """Whether any image or video may come."""
        return self.image > 0 or self.video > 0


def media_limits(given: Mapping[str, Any], *, hears: bool, sees: bool) -> MediaLimits:
    """The limits of a stage whose `engine_args` are given.

    `hears` and `sees` say what the checkpoint and the other arguments allow at all. Raises
    `InvalidArgument` for what is no limit, and for one above 0 where nothing is possible.
    """
    possible = {"audio": hears, "image": sees, "video": sees}
    limits = {name: most * possible[name] for name, most in asdict(MediaLimits()).items()}
    told = given.get(ARGUMENT, {})
    if not isinstance(told, Mapping):
        raise _wrong("must be a mapping")
    for name, most in told.items():
        if name not in limits:
            raise _wrong(f"no {name!r}; there are: {', '.join(limits)}")
        if isinstance(most, bool) or not isinstance(most, int) or most < 0:
            raise _wrong(f"{name}: must be a number from 0 on, is {most!r}")
        if most and not possible[name]:
            raise _wrong(
                f"{name}: must be 0: the checkpoint has no tower for it, or "
                "pipeline_parallel_size is above 1"
            )
        limits[name] = most
    return MediaLimits(**limits)


def _wrong(why: str) -> InvalidArgument:
    return InvalidArgument(f"engine_args: {ARGUMENT}: {why}", field="engine_args")
