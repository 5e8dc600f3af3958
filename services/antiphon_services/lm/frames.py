"""The segments of an engine that draws codes after a prompt of rows.

The prompt of a segment is prefilled in parts. A forward pass may contain parts and draws of several
segments. After the prompt, each step consists of one row and one draw. The last row of the prompt
is the row of the first draw. An engine defines the content of a row and what is done with a draw.

A part waits until all of its rows can be computed. Its end depends only on the rows before it.
Therefore the division of a prompt into parts depends only on the prompt, and not on arrival times
or other sessions. Its keys and values are bit-identical for the same reason. Prompts that have a
common prefix are divided in the same way within this prefix. If a slot still contains parts of the
session's previous prompt, these parts are not computed again (`antiphon_services.lm.kept_parts`).
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
"""The maximum number of rows in a part."""
LEAST_PART_ROWS = 32
"""The minimum length of a part that ends at a cut of the prompt. Each part needs separate calls, so
parts should not be shorter.
"""


class FramePrompt(Protocol):
    """The prompt of a segment and the text that has been received so far.

    The prompt may grow until its length is known.
    """

    @property
    def prompt_rows(self) -> int | None:
        """The length of the prompt including the row of the first draw, or None until it is
        known.
        """

    @property
    def ready_rows(self) -> int:
        """The number of these rows, counted from the start, that can already be computed."""

    @property
    def silent(self) -> bool:
        """Whether the text to be spoken is known to be empty."""

    def accept(self, chunk: InputChunk) -> None:
        """Add a chunk. Raises `AntiphonError` if it is invalid."""

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """The positions where pieces of the prompt, such as turns, end. They are in ascending
        order, and a part may end there.

        Cuts are known when the rows before them are ready, and they do not change.
        """

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Return a name for rows that are ready, or None if no later prompt will have the same rows
        there.

        Equal rows have equal names.
        """

    def pass_part(self, start: int, stop: int) -> None:
        """Skip rows that are ready because the slot already contains them."""


Prompt = TypeVar("Prompt", bound=FramePrompt)
Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class PromptPart(Generic[Prompt]):
    """The rows from `start` to `stop` of the prompt of the segment in `slot`. All of them are
    ready.
    """

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
    """Draw number `step` of the segment in `slot`. It follows a row at `position` that contains
    `text`.
    """

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
    """The state of one segment.

    `slot` is None until the first chunk arrives. `prefilled` is the number of prompt rows in the
    slot. The first `reused` of them were already there. `launched` is the number of draws that were
    requested from the device, and `frames` is the number of draws that were sent. The first draws
    are not made because their frames are `known`. After `shown` draws, finite logits have proved
    that everything in the slot up to that point is finite. `returns` means that the session is
    expected to have another segment. `waiting` is a draw that has been read but not sent.
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
        """Return whether all input for the row of draw number `step` has been received."""

    @abstractmethod
    def take_text(self, step: int) -> Any:
        """Return the text in this row. It is called once for each row, in order, after the text has
        been received.
        """

    @property
    @abstractmethod
    def missing_edge(self) -> str:
        """The edge from which the next row or part of the prompt needs input."""

    @property
    def in_flight(self) -> bool:
        """Whether a draw has been launched but not sent."""
        return self.launched > self.handed_on

    @property
    def handed_on(self) -> int:
        """The number of draws that have been sent, including known frames."""
        return self.frames

    @property
    def doubtful(self) -> range:
        """The positions of the slot that may contain values that are not finite."""
        first = self.prefilled + self.shown if self.shown else self.reused
        return range(first, self.prefilled + self.launched)

    @property
    def prompt_complete(self) -> bool:
        """Whether the next row is the row of a draw."""
        total = self.prompt.prompt_rows
        return total is not None and self.prefilled == total - 1

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched, as far as the host knows."""
        within = self.launched < self.sampling.max_tokens and self.frames >= len(self.known)
        return within and self.prompt_complete and self.has_row(self.launched)

    @property
    def awaited_edge(self) -> str | None:
        """The edge whose input the segment needs to continue. It is None while a draw is in
        flight.
        """
        if self.ended or self.in_flight or self.prompt.silent:
            return None
        ready = self._has_next if self.prompt_complete else self.next_part_end
        return None if ready else self.missing_edge

    @property
    def _has_next(self) -> bool:
        """Whether the next row after the prompt has been received, or all rows of the next known
        part.
        """
        if self.frames < len(self.known):
            return self.next_known_end is not None
        return self.has_row(self.launched)

    @property
    def next_part_end(self) -> int | None:
        """The end of the part that starts at `prefilled`. It is None if the part is not ready or
        does not exist.
        """
        total, start = self.prompt.prompt_rows, self.prefilled
        if start + 1 == total:
            return None
        stop = self._part_end(start)
        if total is not None:
            stop = min(stop, total - 1)
        return stop if self.prompt.ready_rows >= stop else None

    @property
    def next_known_end(self) -> int | None:
        """The end of the next part of the known frames. It is None if one of its rows is missing or
        there is no such part.
        """
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
        """Return the end of the part that starts at `start` without regard to the end of the
        prompt.
        """
        cuts, stop = self.prompt.cuts, start + PART_ROWS
        at = int(np.searchsorted(cuts, start + self.least_part_rows(start)))
        return min(stop, int(cuts[at])) if at < len(cuts) else stop

    def least_part_rows(self, start: int) -> int:
        """Return the minimum length of a part that ends at a cut of the prompt."""
        return LEAST_PART_ROWS

    def launch(self, text: Text) -> FrameDraw[Text]:
        """Count the next draw as launched and return it. `text` is the text in its row."""
        assert self.slot is not None
        step, self.launched = self.launched, self.launched + 1
        return FrameDraw(self.slot, self.prefilled + step, text, self.sampling, step)

    def change(self, row: int) -> None:
        """Prefill the prompt again from `row` onwards, because its rows were replaced.

        Raises `DataLoss` if a draw depends on these rows.
        """
        if self.launched:
            raise DataLoss(f"row {row} of the prompt came again after the first draw")
        start = 0
        while (stop := self._part_end(start)) <= row:
            start = stop
        self.prefilled = min(self.prefilled, start)
        self.reused = min(self.reused, self.prefilled)

    def pass_kept(self, kept: KeptParts) -> None:
        """Skip the parts of the prompt that the slot already contains."""
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
        """Limit the number of draws so that they fit into the context. The prompt must be known.

        Raises `InvalidArgument` if there are known frames beyond the limit.
        """
        room = context_limit - (self.prompt.prompt_rows or 0) + 1
        if self.sampling.max_tokens > room:
            self.sampling = replace(self.sampling, max_tokens=room)
        if len(self.known):
            check_count(self.known, self.most_frames)

    @property
    def most_frames(self) -> int:
        """The maximum number of frames in the segment. The last allowed draw is not a frame."""
        return self.sampling.max_tokens - 1
