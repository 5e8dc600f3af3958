"""The decoder of an engine that draws codes. This module also arranges the rows of a forward
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
    """The rows of one forward pass, in the order of `plan`. Prompt parts come first, followed by
    the rows of `draws`.

    `filled` repeats the last draw until there are at least `LEAST_ROWS` rows, because products that
    only involve the rows of the draws need padding as well.
    """

    draws: list[FrameDraw[Text]]
    filled: list[FrameDraw[Text]]
    plan: AttentionPlan

    def rows_of(self, draws: Sequence[FrameDraw[Text]]) -> list[int]:
        """Return the row index of each draw. Rows are counted from the end of the prompt parts."""
        row_of = {draw.slot: row for row, draw in enumerate(self.draws)}
        return [row_of[draw.slot] for draw in draws]


class FrameDecoder:
    """The part of a `FrameEngine` that does the computation. Subclasses define the rows and the
    draws.

    Raises `InvalidArgument` if there isn't enough memory for `slots` segments with `context_limit`
    positions each.
    """

    def __init__(self, decoder: Decoder, slots: int, context_limit: int) -> None:
        self._decoder = decoder
        self.cache = KVCache(decoder.shape, slots, context_limit)
        self._slots = Slots(slots)
        self.kept = KeptParts()

    def take_slot(self, session: str, *, returns: bool) -> int:
        """Return a slot for a session's new segment. If possible, this is the slot that the
        session's previous segment used.

        Set `returns` if the session is expected to have another segment later. Raises
        `ResourceExhausted` if no slot is free.
        """
        slot = self.kept.choose(session, self._slots.free_slots)
        if slot is None:
            raise ResourceExhausted(f"all {self.cache.slots} slots are in use")
        self._slots.take_this(slot)
        self.kept.own(slot, session, returns=returns)
        return slot

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """Free the slot of a segment that has ended. `doubtful` is the range of positions that may
        contain values that are not finite.
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
        """Arrange all prompt parts and draws in one forward pass."""
        ordered = sorted(draws, key=lambda draw: self._decoder.order(draw.span))
        spans = [*(each.span for each in parts), *(each.span for each in ordered)]
        plan = self._decoder.plan(self.cache, spans)
        return Arranged(ordered, [*ordered, *ordered[-1:] * (LEAST_ROWS - len(ordered))], plan)
