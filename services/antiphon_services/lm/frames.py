"""Segments for engines that draw codes after a prompt of rows.

A segment's prompt is prefilled in parts, and a forward pass may contain parts and draws of several
segments. After the prompt, each step consists of one row and one draw. The prompt's last row
belongs to the first draw. The engine defines what a row contains and what happens with a draw.

A part waits until all of its rows can be computed. The end of a part depends only on the rows
before it. How a prompt is split into parts therefore depends on the prompt alone, and not on
arrival times or on other sessions. For the same reason, the keys and values of a part are
bit-identical every time. Prompts with a common prefix are split in the same way within this prefix.
If a slot still contains parts of the session's previous prompt, these parts are not computed again
(`antiphon_services.lm.kept_parts`).
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
"""The minimum length of a part that ends at a cut of the prompt. Shorter parts aren't worthwhile,
because each part needs its own calls.
"""


class FramePrompt(Protocol):
    """A segment's prompt and the text that has been received so far.

    The prompt may grow until its length is known.
    """

    @property
    def prompt_rows(self) -> int | None:
        """The length of the prompt, including the row for the first draw. It is None until the
        length is known.
        """

    @property
    def ready_rows(self) -> int:
        """The number of rows at the start of the prompt that can already be computed."""

    @property
    def silent(self) -> bool:
        """Whether it is already known that there is no text to speak."""

    def accept(self, chunk: InputChunk) -> None:
        """Add a chunk of input. Raises `AntiphonError` if the chunk is invalid."""

    @property
    def cuts(self) -> npt.NDArray[np.intp]:
        """The positions at which pieces of the prompt, such as turns, end. A part may end at any of
        these positions. They are in ascending order.

        A cut is known once the rows before it are ready, and it never changes afterwards.
        """

    def part_name(self, start: int, stop: int) -> bytes | None:
        """Return a name for a range of rows that are ready. Equal rows have equal names.

        Returns None if no later prompt will have the same rows at this position.
        """

    def pass_part(self, start: int, stop: int) -> None:
        """Skip a range of rows that are ready, because the slot already contains them."""


Prompt = TypeVar("Prompt", bound=FramePrompt)
Text = TypeVar("Text")


@dataclass(frozen=True, slots=True)
class PromptPart(Generic[Prompt]):
    """The rows from `start` to `stop` of a prompt, for the segment in `slot`. All of these rows are
    ready.
    """

    slot: int
    start: int
    stop: int
    prompt: Prompt
    voice: str

    @property
    def span(self) -> Span:
        """The span of these rows in the slot."""
        return Span(self.slot, self.start, self.stop - self.start)


@dataclass(frozen=True, slots=True)
class FrameDraw(Generic[Text]):
    """Draw number `step` of the segment in `slot`. The draw follows a row at `position` that
    contains `text`.
    """

    slot: int
    position: int
    text: Text
    sampling: Sampling
    step: int

    @property
    def span(self) -> Span:
        """The span of this row in the slot."""
        return Span(self.slot, self.position)


@dataclass(slots=True)
class FrameSegment(ABC, Generic[Prompt]):
    """The state of one segment.

    `slot` is None until the first chunk arrives. `prefilled` is the number of prompt rows in the
    slot. The first `reused` of these were left by an earlier segment. `launched` is the number of
    draws that the device has been asked to make, and `frames` is the number of draws that have been
    sent. The `known` frames at the start are sent without being drawn.

    After `shown` draws, finite logits have proved that everything in the slot up to that point is
    finite. `returns` is true if the session is expected to have another segment. `waiting` is a
    draw that has been read but not sent.
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
        """Return whether all input for the row of draw `step` has been received."""

    @abstractmethod
    def take_text(self, step: int) -> Any:
        """Return the text for the row of draw `step`. This is called exactly once for each row, in
        order, and only after the text has been received.
        """

    @property
    @abstractmethod
    def missing_edge(self) -> str:
        """The edge that must deliver input before the next row or prompt part can be computed."""

    @property
    def in_flight(self) -> bool:
        """Whether a draw has been launched but not yet sent."""
        return self.launched > self.handed_on

    @property
    def handed_on(self) -> int:
        """The number of draws that have been sent, including known frames."""
        return self.frames

    @property
    def doubtful(self) -> range:
        """The slot positions that may contain values that are not finite."""
        first = self.prefilled + self.shown if self.shown else self.reused
        return range(first, self.prefilled + self.launched)

    @property
    def prompt_complete(self) -> bool:
        """Whether the prompt has been prefilled, so that the next row belongs to a draw."""
        total = self.prompt.prompt_rows
        return total is not None and self.prefilled == total - 1

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched, as far as the host knows."""
        within = self.launched < self.sampling.max_tokens and self.frames >= len(self.known)
        return within and self.prompt_complete and self.has_row(self.launched)

    @property
    def awaited_edge(self) -> str | None:
        """The edge from which the segment needs input to continue. It is None while a draw is in
        flight.
        """
        if self.ended or self.in_flight or self.prompt.silent:
            return None
        ready = self._has_next if self.prompt_complete else self.next_part_end
        return None if ready else self.missing_edge

    @property
    def _has_next(self) -> bool:
        """Whether all input has been received for the next row after the prompt. If known frames
        remain, this applies to all rows of their next part.
        """
        if self.frames < len(self.known):
            return self.next_known_end is not None
        return self.has_row(self.launched)

    @property
    def next_part_end(self) -> int | None:
        """The end of the part that starts at `prefilled`, or None if the part is not ready or
        doesn't exist.
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
        """The end of the next part that consists of known frames, or None if input for one of its
        rows is missing or no known frames are left.
        """
        if not self.prompt_complete or self.frames >= len(self.known):
            return None
        stop = min(self.frames - self.frames % PART_ROWS + PART_ROWS, len(self.known))
        return stop if self.has_row(self.launched + stop - self.frames - 1) else None

    def take_known(self, stop: int) -> KnownPart[Prompt]:
        """Return the known frames up to `stop` as a part and count them as sent."""
        part = self.known_part(stop)
        self.launched, self.frames = self.launched + len(part.frames), stop
        return part

    def known_part(self, stop: int) -> KnownPart[Prompt]:
        """Return the known frames up to `stop` as a part."""
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
        """Return the end of the part that starts at `start`, ignoring the end of the prompt."""
        cuts, stop = self.prompt.cuts, start + PART_ROWS
        at = int(np.searchsorted(cuts, start + self.least_part_rows(start)))
        return min(stop, int(cuts[at])) if at < len(cuts) else stop

    def least_part_rows(self, start: int) -> int:
        """Return the minimum length of a part that starts at `start` and ends at a cut of the
        prompt.
        """
        return LEAST_PART_ROWS

    def launch(self, text: Text) -> FrameDraw[Text]:
        """Count the next draw as launched and return it. `text` is the text for its row."""
        assert self.slot is not None
        step, self.launched = self.launched, self.launched + 1
        return FrameDraw(self.slot, self.prefilled + step, text, self.sampling, step)

    def change(self, row: int) -> None:
        """Prefill the prompt again, starting with the part that contains `row`, because this row
        and the following ones were replaced.

        Raises `DataLoss` if a draw has already been launched, because it depends on these rows.
        """
        if self.launched:
            raise DataLoss(f"row {row} of the prompt was received again after the first frame")
        start = 0
        while (stop := self._part_end(start)) <= row:
            start = stop
        self.prefilled = min(self.prefilled, start)
        self.reused = min(self.reused, self.prefilled)

    def pass_kept(self, kept: KeptParts) -> None:
        """Skip the prompt parts that the slot already contains."""
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
        """Limit the number of draws so that the segment fits into the context. The prompt must be
        known.

        Raises `InvalidArgument` if the history contains more known frames than this limit allows.
        """
        room = context_limit - (self.prompt.prompt_rows or 0) + 1
        if self.sampling.max_tokens > room:
            self.sampling = replace(self.sampling, max_tokens=room)
        if len(self.known):
            check_count(self.known, self.most_frames)

    @property
    def most_frames(self) -> int:
        """The maximum number of frames in the segment. It is one less than the limit on draws,
        because the last draw doesn't produce a frame.
        """
        return self.sampling.max_tokens - 1
