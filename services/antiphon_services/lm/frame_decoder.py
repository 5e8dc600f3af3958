"""The decoder of an engine that draws codes: its cache, its slots and the rows of one forward."""

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
    """The rows of one forward: parts of prompts, then those of `draws`, in the order of `plan`.

    `filled` repeats the last draw up to `LEAST_ROWS`, since products over the draws' rows need the
    padding, too.
    """

    draws: list[FrameDraw[Text]]
    filled: list[FrameDraw[Text]]
    plan: AttentionPlan

    def rows_of(self, draws: Sequence[FrameDraw[Text]]) -> list[int]:
        """Return the index of each draw's row among the rows after the parts."""
        row_of = {draw.slot: row for row, draw in enumerate(self.draws)}
        return [row_of[draw.slot] for draw in draws]


class FrameDecoder:
    """The computing part of a `FrameEngine`. Subclasses define rows and draws.

    Raises `InvalidArgument` if memory is insufficient for `slots` segments of `context_limit`
    positions.
    """

    def __init__(self, decoder: Decoder, slots: int, context_limit: int) -> None:
        self._decoder = decoder
        self.cache = KVCache(decoder.shape, slots, context_limit)
        self._slots = Slots(slots)
        self.kept = KeptParts()

    def take_slot(self, session: str, *, returns: bool) -> int:
        """Return a slot for a new segment of a session, if possible that of its last one.

        `returns` means that a further segment is expected. Raises `ResourceExhausted`.
        """
        slot = self.kept.choose(session, self._slots.free_slots)
        if slot is None:
            raise ResourceExhausted(f"all {self.cache.slots} slots are taken")
        self._slots.take_this(slot)
        self.kept.own(slot, session, returns=returns)
        return slot

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """Free the slot of an ended segment. `doubtful` positions may hold non-finite values."""
        if doubtful:
            self.cache.clear(slot, doubtful.start, doubtful.stop)
            self.kept.drop(slot, doubtful.start)
        self._slots.free(slot)

    def arrange(
        self,
        parts: Sequence[PromptPart[Any] | KnownPart[Any]],
        draws: Sequence[FrameDraw[Text]],
    ) -> Arranged[Text]:
        """Arrange all of these in one forward."""
        ordered = sorted(draws, key=lambda draw: self._decoder.order(draw.span))
        spans = [*(each.span for each in parts), *(each.span for each in ordered)]
        plan = self._decoder.plan(self.cache, spans)
        return Arranged(ordered, [*ordered, *ordered[-1:] * (LEAST_ROWS - len(ordered))], plan)
