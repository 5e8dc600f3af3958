"""The frame of an engine that draws codes behind a prompt of rows, for many segments at a time.

A segment's prompt goes in by parts, in forwards that it shares with the parts and draws of others;
after that each step is one row and one draw. The prompt's last row is the first draw's. What an
engine adds is what a row is made of, and what becomes of a draw.

Parts wait until all of their rows can be computed, and where one ends depends on the rows before
that alone. So how a prompt is cut up depends on the prompt alone, not on when it came or who else
is served, and neither do the digits of its keys and values; and two prompts that begin alike are
cut alike as far as that goes. What a slot still holds of its session's last prompt is not computed
again: see `antiphon_services.lm.kept_parts`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from antiphon.errors import DataLoss
from antiphon.runtime.engine import InputChunk
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.attention import Span
from antiphon_services.lm.kept_parts import KeptParts
from antiphon_services.lm.known_frames import Frames, KnownPart, check_count, no_frames

PART_ROWS = 128
"""Most rows of a part."""
LEAST_PART_ROWS = 32
"""Fewest rows for which a prompt is cut where a piece of it ends: a part has calls of its own."""


class FramePrompt(Protocol):
    """What has come of a segment's prompt, and of what is to be said behind it.

    A prompt may grow until its length is known.
    """

    @property
    def prompt_rows(self) -> int | None:
        """Length of the prompt, with the first draw's row; None until it is known."""

    @property
    def ready_rows(self) -> int:
        """How many of these rows, from the start, can be computed."""

    @property
    def silent(self) -> bool:
        """Whether it is certain that there is nothing to say."""

    def accept(self, chunk: InputChunk) -> None:
        """Take a chunk in. Raises `AntiphonError`."""

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """Where pieces of the prompt end, ascending, such as a turn: it may be cut there. They are
        known when the rows before them are ready, and stay."""

    def part_name(self, start: int, stop: int) -> bytes | None:
        """The same for ready rows that are the same; None if no later prompt has them there."""

    def pass_part(self, start: int, stop: int) -> None:
        """These ready rows are in the slot: they need not be handed over."""


Prompt = TypeVar("Prompt", bound=FramePrompt)
Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class PromptPart(Generic[Prompt]):
    """Rows `start` to `stop` of the prompt of the segment in `slot`, all of which are ready."""

    slot: int
    start: int
    stop: int
    prompt: Prompt
    voice: str

    @property
    def span(self) -> Span:
        """Where the rows go."""
        return Span(self.slot, self.start, self.stop - self.start)


@dataclass(frozen=True, slots=True)
class FrameDraw(Generic[Text]):
    """Draw `step` of the segment in `slot`, after a row at `position` that goes with `text`."""

    slot: int
    position: int
    text: Text
    sampling: Sampling
    step: int

    @property
    def span(self) -> Span:
        """Where the row goes."""
        return Span(self.slot, self.position)


@dataclass(slots=True)
class FrameSegment(ABC, Generic[Prompt]):
    """`slot` is None until the first chunk; `prefilled` counts prompt rows that are in, of which
    the first `reused` were there before, `launched` draws that the device was asked for and
    `frames` what has left of them. The first draws, whose frames are `known`, are not made. After
    `shown` draws finite logits have shown that all the segment kept was finite. It `returns` if
    its session is expected to have another one. `waiting` is a draw that has been read and not
    handed on."""

    key: SegmentKey
    voice: str
    sampling: Sampling
    prompt: Prompt
    slot: int | None = None
    prefilled: int = 0
    launched: int = 0
    frames: int = 0
    shown: int = 0
    ended: bool = False
    known: Frames = field(default_factory=no_frames)
    reused: int = 0
    returns: bool = False
    waiting: Any | None = None

    @abstractmethod
    def has_row(self, step: int) -> bool:
        """Whether all of draw number `step`'s row has come."""

    @abstractmethod
    def take_text(self, step: int) -> Any:
        """What goes with the codes in that row, which has come; asked for once, in order."""

    @property
    @abstractmethod
    def missing_edge(self) -> str:
        """The edge that brings what the next row, or part of the prompt, lacks."""

    @property
    def in_flight(self) -> bool:
        """Whether a draw was launched and not handed on."""
        return self.launched > self.handed_on

    @property
    def handed_on(self) -> int:
        """How many draws have been handed on, with those that were known."""
        return self.frames

    @property
    def doubtful(self) -> range:
        """Which positions of its slot may hold what is not finite."""
        first = self.prefilled + self.shown if self.shown else self.reused
        return range(first, self.prefilled + self.launched)

    @property
    def prompt_complete(self) -> bool:
        """Whether the next row is a draw's and no longer the prompt's."""
        total = self.prompt.prompt_rows
        return total is not None and self.prefilled == total - 1

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched, as far as the host knows."""
        within = self.launched < self.sampling.max_tokens and self.frames >= len(self.known)
        return within and self.prompt_complete and self.has_row(self.launched)

    @property
    def awaited_edge(self) -> str | None:
        """The edge without which the segment cannot go on; None while a draw is in flight."""
        if self.ended or self.in_flight or self.prompt.silent:
            return None
        ready = self._has_next if self.prompt_complete else self.next_part_end
        return None if ready else self.missing_edge

    @property
    def _has_next(self) -> bool:
        """Whether the next row behind the prompt has come, or all of the next part of them."""
        if self.frames < len(self.known):
            return self.next_known_end is not None
        return self.has_row(self.launched)

    @property
    def next_part_end(self) -> int | None:
        """Where the part from `prefilled` on ends; None when it is not ready or there is none."""
        total, start = self.prompt.prompt_rows, self.prefilled
        if start + 1 == total:
            return None
        stop = self._part_end(start)
        if total is not None:
            stop = min(stop, total - 1)
        return stop if self.prompt.ready_rows >= stop else None

    @property
    def next_known_end(self) -> int | None:
        """Where the next part of the known frames ends; None when a row of it has not come, or
        there is none."""
        if not self.prompt_complete or self.frames >= len(self.known):
            return None
        stop = min(self.frames - self.frames % PART_ROWS + PART_ROWS, len(self.known))
        return stop if self.has_row(self.launched + stop - self.frames - 1) else None

    def take_known(self, stop: int) -> KnownPart[Prompt]:
        """The part of the known frames that ends there, which goes in now."""
        part = self.known_part(stop)
        self.launched, self.frames = self.launched + len(part.frames), stop
        return part

    def known_part(self, stop: int) -> KnownPart[Prompt]:
        """The part of the known frames that ends there."""
        assert self.slot is not None
        start, step = self.frames, self.launched
        return KnownPart(
            self.key,
            self.slot,
            self.prefilled + step,
            step,
            self.sampling,
            [self.take_text(step + at) for at in range(stop - start)],
            self.known[start:stop],
            self.known[max(start - 1, 0) : start],
            self.prompt,
        )

    def _part_end(self, start: int) -> int:
        """Where the part from `start` on ends, unless the prompt ends before."""
        cuts, stop = self.prompt.cuts, start + PART_ROWS
        at = int(np.searchsorted(cuts, start + self.least_part_rows(start)))
        return min(stop, int(cuts[at])) if at < len(cuts) else stop

    def least_part_rows(self, start: int) -> int:
        """Fewest rows of a part from `start` on that ends at a cut of the prompt."""
        return LEAST_PART_ROWS

    def launch(self, text: Text) -> FrameDraw[Text]:
        """The next draw, which is launched now; `text` is that of its row. The segment can."""
        assert self.slot is not None
        step, self.launched = self.launched, self.launched + 1
        return FrameDraw(self.slot, self.prefilled + step, text, self.sampling, step)

    def change(self, row: int) -> None:
        """Rows of the prompt have come again from this one on: they are to go in anew.

        Raises `DataLoss` when something was drawn behind them.
        """
        if self.launched:
            raise DataLoss(f"row {row} of the prompt came again after the first draw")
        start = 0
        while (stop := self._part_end(start)) <= row:
            start = stop
        self.prefilled = min(self.prefilled, start)
        self.reused = min(self.reused, self.prefilled)

    def pass_kept(self, kept: KeptParts) -> None:
        """Go on behind the parts of the prompt that its slot holds."""
        while self.slot is not None and kept.holds(self.slot, self.prefilled):
            start, stop = self.prefilled, self.next_part_end
            if stop is None:
                return
            name = self.prompt.part_name(start, stop)
            if name is None or not kept.matches(self.slot, start, stop, name):
                kept.drop(self.slot, start)
                return
            self.prompt.pass_part(start, stop)
            self.prefilled = self.reused = stop

    def bound(self, context_limit: int) -> None:
        """Let the draws end where the context does; the prompt must be known.

        Raises `InvalidArgument` for frames behind that.
        """
        room = context_limit - (self.prompt.prompt_rows or 0) + 1
        if self.sampling.max_tokens > room:
            self.sampling = replace(self.sampling, max_tokens=room)
        if len(self.known):
            check_count(self.known, self.most_frames)

    @property
    def most_frames(self) -> int:
        """Out of all draws that it may have, of which the last one is no frame."""
        return self.sampling.max_tokens - 1
