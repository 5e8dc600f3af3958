"""The frame of an engine that draws codes behind a prompt of rows, for many segments at a time.

A segment's prompt goes in by parts, in forwards that it shares with the parts and draws of others;
after that each step is one row and one draw. The prompt's last row is the first draw's. What an
engine adds is what a row is made of, and what becomes of a draw.

Parts begin at multiples of `PART_ROWS` and wait until all of their rows can be computed. So how a
prompt is cut up depends on the prompt alone, not on when it came or who else is served, and
neither do the digits of its keys and values.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

import torch

from antiphon.errors import DataLoss, InvalidArgument
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, InputChunk, SegmentSettings
from antiphon.sampling import Sampling
from antiphon.segment import FinishReason, SegmentKey
from services.lm.attention import Span

# Bounds how long the draws of other segments wait for a long prompt.
PREFILL_ROWS_PER_STEP = 256
PART_ROWS = 128


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


Prompt = TypeVar("Prompt", bound=FramePrompt)


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


@dataclass(slots=True)
class FrameSegment(ABC, Generic[Prompt]):
    """`slot` is None until the first chunk; `prefilled` counts prompt rows that are in,
    `launched` draws that the device was asked for and `frames` what has left of them. After
    `shown` draws finite logits have shown that all the segment kept was finite."""

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

    @property
    @abstractmethod
    def has_next_row(self) -> bool:
        """Whether all of the next draw's row has come."""

    @property
    @abstractmethod
    def missing_edge(self) -> str:
        """The edge that brings what the next row, or part of the prompt, lacks."""

    @property
    def in_flight(self) -> bool:
        """Whether a draw was launched and not handed on."""
        return False

    @property
    def doubtful(self) -> range:
        """Which positions of its slot may hold what is not finite."""
        first = self.prefilled + self.shown if self.shown else 0
        return range(first, self.prefilled + self.launched)

    @property
    def prompt_complete(self) -> bool:
        """Whether the next row is a draw's and no longer the prompt's."""
        total = self.prompt.prompt_rows
        return total is not None and self.prefilled == total - 1

    @property
    def can_draw(self) -> bool:
        """Whether the next draw can be launched, as far as the host knows."""
        within = self.launched < self.sampling.max_tokens
        return within and self.prompt_complete and self.has_next_row

    @property
    def awaited_edge(self) -> str | None:
        """The edge without which the segment cannot go on; None while a draw is in flight."""
        if self.ended or self.in_flight or self.prompt.silent:
            return None
        ready = self.has_next_row if self.prompt_complete else self.next_part_end
        return None if ready else self.missing_edge

    @property
    def next_part_end(self) -> int | None:
        """Where the part from `prefilled` on ends; None when it is not ready or there is none."""
        total, start = self.prompt.prompt_rows, self.prefilled
        if start + 1 == total:
            return None
        stop = start - start % PART_ROWS + PART_ROWS
        if total is not None:
            stop = min(stop, total - 1)
        return stop if self.prompt.ready_rows >= stop else None

    def change(self, row: int) -> None:
        """Rows of the prompt have come again from this one on: they are to go in anew.

        Raises `DataLoss` when something was drawn behind them.
        """
        if self.launched:
            raise DataLoss(f"row {row} of the prompt came again after the first draw")
        self.prefilled = min(self.prefilled, row - row % PART_ROWS)

    def bound(self, context_limit: int) -> None:
        """Let the draws end where the context does; the prompt must be known."""
        room = context_limit - (self.prompt.prompt_rows or 0) + 1
        if self.sampling.max_tokens > room:
            self.sampling = replace(self.sampling, max_tokens=room)


Segment = TypeVar("Segment", bound=FrameSegment[Any])


class FrameModel(Protocol):
    """What computes for an engine: it has a slot for each segment that runs."""

    def take_slot(self) -> int:
        """A slot for a new segment. Raises `ResourceExhausted`."""

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """The slot's segment is gone; these positions may hold what is not finite."""


class FrameEngine(ABC, Generic[Segment]):
    """All of `antiphon.runtime.engine.Engine` but `step`, for the stage `role` with the one output
    edge `edge`. Positions are bounded by `context_limit`."""

    role: str
    edge: str

    def __init__(self, model: FrameModel, context_limit: int) -> None:
        self._frame_model = model
        self._context_limit = context_limit
        self._segments: dict[SegmentKey, Segment] = {}

    @abstractmethod
    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> Segment:
        """A segment that nothing has come for. Raises `InvalidArgument` for its settings."""

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Raises `InvalidArgument` for settings that `new_segment` refuses, or another output."""
        if settings.outputs != {self.edge}:
            raise InvalidArgument(
                f"outputs: the {self.role} makes {self.edge!r}, not {sorted(settings.outputs)}",
                field="outputs",
            )
        self._segments[key] = self.new_segment(key, settings)

    @torch.inference_mode()
    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Give the segment's prompt the chunk. The first one takes a slot.

        Raises `InvalidArgument` over the limit and `ResourceExhausted` without a slot.
        """
        segment = self._segments[key]
        segment.prompt.accept(chunk)
        rows = segment.prompt.prompt_rows or segment.prompt.ready_rows
        if rows > self._context_limit:
            raise InvalidArgument(
                f"the prompt takes {rows} {self.role} positions of at most {self._context_limit}",
                field="messages",
            )
        segment.bound(self._context_limit)
        if segment.slot is None:
            segment.slot = self._frame_model.take_slot()

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """See `FrameSegment.awaited_edge`."""
        return self._segments[key].awaited_edge

    @torch.inference_mode()
    def release(self, key: SegmentKey) -> None:
        """Forget the segment and give its slot back, whatever is in flight."""
        segment = self._segments.pop(key)
        if segment.slot is not None:
            self._frame_model.give_slot_back(segment.slot, segment.doubtful)

    def so_far(self, key: SegmentKey) -> Completed:
        """What the segment has cost until now."""
        return _cost(self._segments[key], FinishReason.CANCELLED)

    def going(self, held: Collection[SegmentKey]) -> list[Segment]:
        """Those that have not ended and are not held."""
        return [each for each in self._segments.values() if not each.ended and each.key not in held]

    def finish(self, segment: Segment, reason: FinishReason) -> list[EngineEvent]:
        """The segment's last events."""
        segment.ended = True
        return [
            Emitted(segment.key, self.edge, segment.frames, finish_reason=reason),
            _cost(segment, reason),
        ]


def _cost(segment: FrameSegment[Any], reason: FinishReason) -> Completed:
    """What a segment took and gave."""
    return Completed(segment.key, reason, segment.prompt.prompt_rows or 0, segment.frames)


def take_parts(segments: Collection[FrameSegment[Prompt]]) -> list[PromptPart[Prompt]]:
    """The next parts of prompts, within the budget; whoever has had least comes first.

    So a short prompt is not behind a long one that came before it, and a long one goes
    on, since those before it are soon done.
    """
    budget, parts = PREFILL_ROWS_PER_STEP, []
    waiting = [segment for segment in segments if segment.next_part_end]
    while waiting:
        segment = min(waiting, key=lambda each: each.prefilled)
        start, stop = segment.prefilled, segment.next_part_end
        if stop is None or segment.slot is None:
            waiting.remove(segment)
            continue
        if stop - start > budget:
            break
        budget -= stop - start
        segment.prefilled = stop
        parts.append(PromptPart(segment.slot, start, stop, segment.prompt, segment.voice))
    return parts
