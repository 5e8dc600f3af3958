"""An engine that draws codes: all but what a step is made of. See `antiphon_services.lm.frames`.

With `launch_ahead` the device never waits for the host between two steps. The engine launches a
step for all segments that can go on as far as the host knows, and reads the draws of the step
before only then. The host can be wrong about one thing: that a segment goes on. The draw of a
segment that has ended is dropped. A step is read as soon as its own copy is complete, while its
successor still runs. New input, a text or a session, joins a step later.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

import torch

from antiphon.errors import Internal, InvalidArgument
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    Failed,
    InputChunk,
    SegmentSettings,
)
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.frames import FrameSegment, Prompt, PromptPart
from antiphon_services.lm.kept_parts import KeptParts
from antiphon_services.lm.known_frames import KnownPart, known_frames
from antiphon_services.lm.pending_step import PendingStep
from antiphon_services.lm.readback import Drawn
from antiphon_services.stage.budgets import PREFILL_ROWS

Segment = TypeVar("Segment", bound=FrameSegment[Any])


class FrameModel(Protocol):
    """What computes for an engine: it has a slot for each segment that runs."""

    @property
    def code_sizes(self) -> Sequence[int]:
        """Below which the codes of each group are that can be drawn."""

    kept: KeptParts

    def take_slot(self, session: str, *, returns: bool) -> int:
        """A slot for a new segment of a session, which `returns` if another one is expected.

        Raises `ResourceExhausted`.
        """

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """The slot's segment is gone; these positions may hold what is not finite."""


class FrameEngine(ABC, Generic[Segment]):
    """Implements `antiphon.runtime.engine.Engine` for the stage `role` with the one output edge
    `edge`. Positions are bounded by `context_limit`, and prompt rows in a step by
    `prefill_rows`, which is a part of a prompt at least. With `launch_ahead` a step is launched
    before the draws of the one before are read."""

    role: str
    edge: str

    def __init__(
        self,
        model: FrameModel,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        launch_ahead: bool = False,
    ) -> None:
        self._frame_model = model
        self._context_limit = context_limit
        self._prefill_rows = prefill_rows
        self._launch_ahead = launch_ahead
        self._pending: PendingStep | None = None
        self._segments: dict[SegmentKey, Segment] = {}

    @abstractmethod
    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> Segment:
        """A segment that nothing has come for. Raises `InvalidArgument` for its settings."""

    def wait_for_input(self, segments: Sequence[Segment]) -> None:
        """Wait if none of these can go on before something that the engine makes is there.

        Called when no step is pending. Here nothing is made.
        """

    @abstractmethod
    def launch(self, segments: Sequence[Segment], events: list[EngineEvent]) -> PendingStep | None:
        """Start a step of those that can go on; None when it draws nothing.

        What is known without its draws goes into `events`.
        """

    @abstractmethod
    def take_drawn(self, segment: Segment, drawn: Any) -> Sequence[EngineEvent]:
        """The events of the segment's next draw, as it was read, in order; the segment may end
        with it."""

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Prefill a part, or make a draw, of every segment that can go on and is not `held`.

        With `launch_ahead`, a later step hands on what this one launches.
        """
        free = self.going(held)
        if self._pending is None:
            self.wait_for_input(free)
        events = self._end_silent(free)
        events += self._hand_on(free)
        pending, self._pending = self._pending, None
        # A launch takes a while: a step that is complete already is read first.
        if pending is None or not pending.ready:
            self._pending = self.launch([each for each in free if not each.ended], events)
        if not self._launch_ahead:
            pending, self._pending = self._pending, None
        if pending is not None:
            pending.collect()
            events += self._hand_on(free)
        return events

    def _end_silent(self, segments: Sequence[Segment]) -> list[EngineEvent]:
        """The last events of segments with nothing to say. Input comes between steps alone."""
        events: list[EngineEvent] = []
        for segment in segments:
            if segment.prompt.silent:
                events += self.finish(segment, FinishReason.STOP)
        return events

    def _hand_on(self, segments: Sequence[Segment]) -> list[EngineEvent]:
        """The events of draws that were read, of segments that are not held."""
        events: list[EngineEvent] = []
        for segment in segments:
            if segment.waiting is not None and not segment.ended:
                drawn, segment.waiting = segment.waiting, None
                events += self.take_drawn(segment, drawn)
        return events

    def undecided(self, segment: Segment) -> list[EngineEvent]:
        """The segment ends because the logits of its next draw are not finite."""
        segment.ended = True
        reason = f"draw {segment.handed_on}: the logits are not finite"
        return [Failed(segment.key, Internal(reason))]

    def take_frame(self, segment: Segment, drawn: Drawn, stop_code: int) -> Sequence[EngineEvent]:
        """`take_drawn` where each draw is a frame, but `stop_code` and the last one allowed."""
        step = segment.frames
        if not drawn.decided:
            return self.undecided(segment)
        segment.shown = step + 1
        if drawn.ids[0] == stop_code:
            return self.finish(segment, FinishReason.STOP)
        if step + 1 == segment.sampling.max_tokens:
            return self.finish(segment, FinishReason.LENGTH)
        segment.frames += 1
        return [Emitted(segment.key, self.edge, step, {self.edge: drawn.codes})]

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Raises `InvalidArgument` for settings that `new_segment` refuses, another output, or a
        history of frames that cannot be drawn."""
        if settings.outputs != {self.edge}:
            raise InvalidArgument(
                f"outputs: the {self.role} makes {self.edge!r}, not {sorted(settings.outputs)}",
                field="outputs",
            )
        known = known_frames(settings.history, self._frame_model.code_sizes)
        segment = self._segments[key] = self.new_segment(key, settings)
        segment.known = known
        # Most sessions have one segment: a first one is expected to be the only one.
        segment.returns = key.segment > 0 or settings.live

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
            segment.slot = self._frame_model.take_slot(key.session_id, returns=segment.returns)

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

    def take_known(
        self, segments: Collection[Segment], parts: Sequence[PromptPart[Any]]
    ) -> list[KnownPart[Any]]:
        """The next known frames' rows, within what `parts` leave of the budget."""
        budget = self.left_of_budget(parts)
        taken = []
        for segment in segments:
            while (stop := segment.next_known_end) and stop - segment.frames <= budget:
                budget -= stop - segment.frames
                taken.append(segment.take_known(stop))
        return taken

    def left_of_budget(self, parts: Sequence[PromptPart[Any]]) -> int:
        """How many rows beside these may go in with a step."""
        return self._prefill_rows - sum(part.stop - part.start for part in parts)

    def tell_known(self, parts: Sequence[KnownPart[Any]]) -> list[EngineEvent]:
        """Let the frames of rows that went in leave, as if they had been drawn; their tensor is
        called what the edge is."""
        return [Emitted(each.key, self.edge, each.step, {self.edge: each.frames}) for each in parts]

    def take_parts(self, segments: Collection[Segment]) -> list[PromptPart[Any]]:
        """The next parts of prompts that are to be computed, all of which will be."""
        kept = self._frame_model.kept
        for segment in segments:
            segment.pass_kept(kept)
        parts = next_parts(segments, self._prefill_rows)
        for part in parts:
            # What is drawn goes behind the last part, which has no name.
            kept.put(part.slot, part.start, part.stop, part.prompt.part_name(part.start, part.stop))
        return parts

    def finish(self, segment: Segment, reason: FinishReason) -> list[EngineEvent]:
        """The segment's last events."""
        segment.ended = True
        return [
            Emitted(segment.key, self.edge, segment.frames, finish_reason=reason),
            _cost(segment, reason),
        ]


def _cost(segment: FrameSegment[Any], reason: FinishReason) -> Completed:
    """What a segment took and gave."""
    rows = segment.prompt.prompt_rows or 0
    return Completed(
        segment.key, reason, rows, segment.frames, input_cached_positions=segment.reused
    )


def next_parts(segments: Collection[FrameSegment[Prompt]], budget: int) -> list[PromptPart[Prompt]]:
    """The next parts of prompts, within the budget of rows; whoever has had least comes first.

    So a short prompt is not behind a long one that came before it, and a long one goes
    on, since those before it are soon done. There are none in a step that makes the first
    frame of a segment: its listener hears nothing yet, and later frames have some lead. Each
    segment has one such step, so prompts are delayed by a step for each that begins.
    """
    parts: list[PromptPart[Prompt]] = []
    if any(segment.can_draw and not segment.launched for segment in segments):
        return []
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
