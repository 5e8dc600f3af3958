"""The sizes and checks that the tiny checkpoints of all families have in common."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from antiphon.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class TinySizes:
    """The sizes of the language model that decodes. Families add the sizes of their other parts.

    Raises `InvalidArgument` if a size is below 1 or if `check` finds a problem.
    """

    hidden: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            size = getattr(self, field.name)
            if isinstance(size, int) and not isinstance(size, bool) and size < 1:
                raise InvalidArgument(f"{field.name}: must be at least 1", field=field.name)
        self.check()

    def check(self) -> None:
        """Raise `InvalidArgument` if the sizes are not compatible."""
        self.check_divides("kv_heads", "heads")

    def check_divides(self, name: str, whole: str, *, even: bool = False) -> None:
        """Raise `InvalidArgument` unless `whole` is a multiple of `name`, or an even multiple if
        `even` is true.
        """
        size, factor = getattr(self, whole), getattr(self, name)
        if size % factor or (even and (size // factor) % 2):
            kind = "an even multiple" if even else "a multiple"
            raise InvalidArgument(f"{whole}: must be {kind} of {name}", field=whole)


@dataclass(frozen=True, slots=True)
class TinyMultimodalSizes(TinySizes):
    """Sizes that also include an audio tower and a vision tower."""

    audio_hidden: int = 32
    audio_layers: int = 2
    audio_heads: int = 2
    vision_hidden: int = 32
    vision_layers: int = 2
    vision_heads: int = 2

    def check(self) -> None:
        """Raise `InvalidArgument` if the sizes are not compatible."""
        TinySizes.check(self)
        self.check_divides("audio_heads", "audio_hidden", even=True)
        self.check_divides("vision_heads", "vision_hidden", even=True)
