"""The decoder of an engine that draws codes, with its cache, its slots and the rows of a forward
pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from antiphon.errors import ResourceExhausted
from antiphon_services.lm.attention import AttentionPlan
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.kept_parts import KeptParts
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.lm.kv_cache import KVCache
from antiphon_services.lm.slots import Slots

Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class Arranged(Generic[Text]):
    """The rows of one forward pass, in the order of `plan`. Parts of prompts come first, followed
    by the rows of `draws`.

    `filled` repeats the last draw so that there are at least `LEAST_ROWS` rows, because products
    over the rows of the draws need the padding as well.
    """

    draws: list[FrameDraw[Text]]
    filled: list[FrameDraw[Text]]
    plan: AttentionPlan

    def rows_of(self, draws: Sequence[FrameDraw[Text]]) -> list[int]:
        """Return the index of the row of each draw, counted from the end of the parts."""
        row_of = {draw.slot: row for row, draw in enumerate(self.draws)}
        return [row_of[draw.slot] for draw in draws]


class FrameDecoder:
    """The part of a `FrameEngine` that computes. Subclasses define the rows and the draws.

    Raises `InvalidArgument` if the memory is not sufficient for `slots` segments of `context_limit`
    positions.
    """

    def __init__(self, decoder: Decoder, slots: int, context_limit: int) -> None:
        self._decoder = decoder
        self.cache = KVCache(decoder.shape, slots, context_limit)
        self._slots = Slots(slots)
        self.kept = KeptParts()

    def take_slot(self, session: str, *, returns: bool) -> int:
        """Return a slot for a new segment of a session. If possible, it is the slot of the previous
        segment of this session.

        `returns` means that another segment is expected later. Raises `ResourceExhausted` if no
        slot is free.
        """
        slot = self.kept.choose(session, self._slots.free_slots)
        if slot is None:
            raise ResourceExhausted(f"all {self.cache.slots} slots are taken")
        self._slots.take_this(slot)
        self.kept.own(slot, session, returns=returns)
        return slot

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """Free the slot of a segment that has ended. The positions in `doubtful` may contain values
        that are not finite.
        """
        if doubtful:
            self.cache.clear(slot, doubtful.start, doubtful.stop)
            self.kept.drop(slot, doubtful.start)
        self._slots.free(slot)

    def arrange(
        self,
        parts: Sequence[PromptPart[Any] | KnownPart[Any]],
        draws: Sequence[FrameDraw[Text]],
    ) -> Arranged[Text]:
        """Arrange all parts and draws in one forward pass."""
        ordered = sorted(draws, key=lambda draw: self._decoder.order(draw.span))
        spans = [*(each.span for each in parts), *(each.span for each in ordered)]
        plan = self._decoder.plan(self.cache, spans)
        return Arranged(ordered, [*ordered, *ordered[-1:] * (LEAST_ROWS - len(ordered))], plan)
