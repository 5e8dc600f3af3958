"""Segments of an engine that draws codes after a prompt of rows.

A segment's prompt is prefilled in parts, in forwards shared with the parts and draws of other
segments. After that, each step is one row and one draw. The prompt's last row is that of the first
draw. Engines define the content of a row and the use of a draw.

A part waits until all of its rows can be computed, and its end depends only on the rows before it.
So the partition of a prompt depends on the prompt alone, not on arrival times or other sessions,
and so do the digits of its keys and values. Prompts with a common prefix are partitioned alike over
it. What a slot still holds of its session's last prompt is not computed again: see
`antiphon_services.lm.kept_parts`.
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
"""Shortest part that ends at a cut of the prompt, since each part needs separate calls."""


class FramePrompt(Protocol):
    """A segment's prompt and its text, as far as received.

    A prompt may grow until its length is known.
    """

    @property
    def prompt_rows(self) -> int | None:
        """Length of the prompt, including the first draw's row; None until known."""

    @property
    def ready_rows(self) -> int:
        """How many of these rows, from the start, can be computed."""

    @property
    def silent(self) -> bool:
        """Whether there is certainly nothing to say."""

    def accept(self, chunk: InputChunk) -> None:
        """Add a chunk. Raises `AntiphonError`."""

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """Where pieces of the prompt end, such as turns, ascending: a part may end there.

        Cuts are known when the rows before them are ready, and do not change.
        """

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Return a name of ready rows, equal for equal rows; None if no later prompt has them
        there."""

    def pass_part(self, start: int, stop: int) -> None:
        """Skip ready rows that the slot already holds."""


Prompt = TypeVar("Prompt", bound=FramePrompt)
Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class PromptPart(Generic[Prompt]):
    """Rows `start` to `stop` of the prompt of the segment in `slot`, all ready."""

    slot: int
    start: int
    stop: int
    prompt: Prompt
    voice: str

    @property
    def span(self) -> Span:
        """The span of the rows in the slot."""
        return Span(self.slot, self.start, self.stop - self.start)


@dataclass(frozen=True, slots=True)
class FrameDraw(Generic[Text]):
    """Draw `step` of the segment in `slot`, after a row at `position` that contains `text`."""

    slot: int
    position: int
    text: Text
    sampling: Sampling
    step: int

    @property
    def span(self) -> Span:
        """The span of the row in the slot."""
        return Span(self.slot, self.position)


@dataclass(slots=True)
class FrameSegment(ABC, Generic[Prompt]):
    """State of one segment.

    `slot` is None until the first chunk. `prefilled` counts prompt rows in the slot; the first
    `reused` of them were there before. `launched` counts draws requested from the device, `frames`
    those sent. The first draws, whose frames are `known`, are not made. After `shown` draws, finite
    logits have proved that everything in the slot up to then is finite. `returns` means that the
    session is expected to have a further segment. `waiting` is a draw that was read and not sent.
    """

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
        """Return whether all input of draw `step`'s row was received."""

    @abstractmethod
    def take_text(self, step: int) -> Any:
        """Return the text in that row. Called once per row, in order, after it was received."""

    @property
    @abstractmethod
    def missing_edge(self) -> str:
        """The edge whose input the next row, or part of the prompt, needs."""

    @property
    def in_flight(self) -> bool:
        """Whether a draw was launched and not sent."""
        return self.launched > self.handed_on

    @property
    def handed_on(self) -> int:
        """Number of draws sent, including known ones."""
        return self.frames

    @property
    def doubtful(self) -> range:
        """Positions of its slot that may hold non-finite values."""
        first = self.prefilled + self.shown if self.shown else self.reused
        return range(first, self.prefilled + self.launched)

    @property
    def prompt_complete(self) -> bool:
        """Whether the next row is that of a draw."""
        total = self.prompt.prompt_rows
        return total is not None and self.prefilled == total - 1

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched, as far as the host knows."""
        within = self.launched < self.sampling.max_tokens and self.frames >= len(self.known)
        return within and self.prompt_complete and self.has_row(self.launched)

    @property
    def awaited_edge(self) -> str | None:
        """The edge without which the segment cannot continue; None while a draw is in flight."""
        if self.ended or self.in_flight or self.prompt.silent:
            return None
        ready = self._has_next if self.prompt_complete else self.next_part_end
        return None if ready else self.missing_edge

    @property
    def _has_next(self) -> bool:
        """Whether the next row after the prompt, or all of the next known part, was received."""
        if self.frames < len(self.known):
            return self.next_known_end is not None
        return self.has_row(self.launched)

    @property
    def next_part_end(self) -> int | None:
        """End of the part that starts at `prefilled`; None if it is not ready or there is none."""
        total, start = self.prompt.prompt_rows, self.prefilled
        if start + 1 == total:
            return None
        stop = self._part_end(start)
        if total is not None:
            stop = min(stop, total - 1)
        return stop if self.prompt.ready_rows >= stop else None

    @property
    def next_known_end(self) -> int | None:
        """End of the next part of the known frames; None if a row of it is missing or there is
        none."""
        if not self.prompt_complete or self.frames >= len(self.known):
            return None
        stop = min(self.frames - self.frames % PART_ROWS + PART_ROWS, len(self.known))
        return stop if self.has_row(self.launched + stop - self.frames - 1) else None

    def take_known(self, stop: int) -> KnownPart[Prompt]:
        """Return the part of the known frames up to `stop`, and count it as prefilled."""
        part = self.known_part(stop)
        self.launched, self.frames = self.launched + len(part.frames), stop
        return part

    def known_part(self, stop: int) -> KnownPart[Prompt]:
        """Return the part of the known frames up to `stop`."""
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
        """Return the end of the part that starts at `start`, regardless of the prompt's end."""
        cuts, stop = self.prompt.cuts, start + PART_ROWS
        at = int(np.searchsorted(cuts, start + self.least_part_rows(start)))
        return min(stop, int(cuts[at])) if at < len(cuts) else stop

    def least_part_rows(self, start: int) -> int:
        """Return the shortest length of a part that ends at a cut of the prompt."""
        return LEAST_PART_ROWS

    def launch(self, text: Text) -> FrameDraw[Text]:
        """Count the next draw as launched and return it. `text` is that of its row."""
        assert self.slot is not None
        step, self.launched = self.launched, self.launched + 1
        return FrameDraw(self.slot, self.prefilled + step, text, self.sampling, step)

    def change(self, row: int) -> None:
        """Prefill again from `row` on: rows of the prompt were replaced.

        Raises `DataLoss` if a draw depends on them.
        """
        if self.launched:
            raise DataLoss(f"row {row} of the prompt came again after the first draw")
        start = 0
        while (stop := self._part_end(start)) <= row:
            start = stop
        self.prefilled = min(self.prefilled, start)
        self.reused = min(self.reused, self.prefilled)

    def pass_kept(self, kept: KeptParts) -> None:
        """Skip the parts of the prompt that the slot already holds."""
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
        """Limit the draws to the context; the prompt must be known.

        Raises `InvalidArgument` for known frames beyond it.
        """
        room = context_limit - (self.prompt.prompt_rows or 0) + 1
        if self.sampling.max_tokens > room:
            self.sampling = replace(self.sampling, max_tokens=room)
        if len(self.known):
            check_count(self.known, self.most_frames)

    @property
    def most_frames(self) -> int:
        """Most frames of the segment: the last allowed draw is not a frame."""
        return self.sampling.max_tokens - 1
