"""The step loop for engines whose models draw codes. Subclasses define what happens in a step, and
`lm.frames` defines the segments.

Each step ends with a draw that the host must read, both to send the frame and to find out whether
the segment continues. If the host only launched the next step after reading the draw, the device
would be idle during the round trip and the host's own work in every frame. With `launch_ahead`, the
work of the host and the device overlaps:

    step n runs       host launches step n + 1, then reads the draws of step n
    step n + 1 runs   host sends the frames of step n, launches step n + 2, ...

This is possible because step n + 1 doesn't need anything from the host that depends on step n. The
codes that were drawn stay on the device, where the next row is built from them
(`GroupedFrameDecoder`). The host only provides text and positions, which it already has.

At this point, the host doesn't know whether a segment ends with step n, but it launches a row for
the segment anyway. If the segment has ended, its draw is dropped (`PendingStep`), and the doubtful
positions of the slot are cleared. A wrong guess therefore costs one row, but never results in a
wrong frame.

Launching ahead has the following consequences:

* New input, such as text or a new session, is included one step later.
* If a segment is held, its draw waits in the segment and doesn't block any other segment.
* A step is read as soon as its copy to the host is complete, while the next step is still running.
  The copy uses a different stream, so its source must not be overwritten (`lm.readback`).
* Logits that are not finite are detected one step late. Positions that are not yet known to be
  finite are cleared when the slot is freed (`FrameSegment.doubtful`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
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
    """The part of an engine that does the computation. It has one slot for each running segment."""

    @property
    def code_sizes(self) -> Sequence[int]:
        """The upper limits of the codes that can be drawn, one for each group."""

    kept: KeptParts

    def take_slot(self, session: str, *, returns: bool) -> int:
        """Return a slot for a session's new segment. Set `returns` if another segment is expected
        later.

        Raises `ResourceExhausted` if no slot is free.
        """

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """Free the slot of a segment that has ended. `doubtful` is the range of positions that may
        contain values that are not finite.
        """


Model = TypeVar("Model", bound=FrameModel)


class FrameEngine(ABC, Generic[Segment, Model]):
    """Implements `antiphon.runtime.engine.Engine` for the stage `role`, whose output edge is
    `edge`.

    `context_limit` is the maximum number of positions in a segment. `prefill_rows` is the maximum
    number of prompt rows per step and must be at least the size of one prompt part. If
    `launch_ahead` is true, a step is launched before the draws of the previous step are read.
    """

    role: str
    edge: str

    def __init__(
        self,
        model: Model,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        launch_ahead: bool = False,
    ) -> None:
        self._model = model
        self._context_limit = context_limit
        self._prefill_rows = prefill_rows
        self._launch_ahead = launch_ahead
        self._pending: PendingStep | None = None
        self._segments: dict[SegmentKey, Segment] = {}

    @property
    def model(self) -> Model:
        """The model that the engine uses."""
        return self._model

    @property
    def segments(self) -> Mapping[SegmentKey, Segment]:
        """All segments of the engine, by key."""
        return self._segments

    @abstractmethod
    def new_segment(self, key: SegmentKey, settings: SegmentSettings) -> Segment:
        """Return a segment that has no input yet. Raises `InvalidArgument` if its settings are not
        supported.
        """

    def wait_for_input(self, segments: Sequence[Segment]) -> None:
        """Block until the engine has finished preparing something, if none of these segments can
        continue without it.

        This is only called if no step is pending. The default implementation returns immediately.
        """

    @abstractmethod
    def launch(self, segments: Sequence[Segment], events: list[EngineEvent]) -> PendingStep | None:
        """Start a step for the segments that can continue. Return None if nothing is drawn in this
        step.

        Events that don't depend on the draws are added to `events`.
        """

    @abstractmethod
    def take_drawn(self, segment: Segment, drawn: Any) -> Sequence[EngineEvent]:
        """Return the events for the segment's next draw. Draws are passed in order. The segment may
        end with this draw.
        """

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Prefill one prompt part or make one draw for every segment that can continue and is not
        in `held`.

        With `launch_ahead`, the draws launched by this call are returned by a later call.
        """
        free = self.going(held)
        if self._pending is None:
            self.wait_for_input(free)
        events = self._end_silent(free)
        events += self._hand_on(free)
        pending, self._pending = self._pending, None
        # Launching takes time, so if a step is already complete, read it first.
        if pending is None or not pending.ready:
            self._pending = self.launch([each for each in free if not each.ended], events)
        if not self._launch_ahead:
            pending, self._pending = self._pending, None
        if pending is not None:
            pending.collect()
            events += self._hand_on(free)
        return events

    def _end_silent(self, segments: Sequence[Segment]) -> list[EngineEvent]:
        """End the segments whose prompt is silent and return their last events. This is safe
        because input only arrives between steps.
        """
        events: list[EngineEvent] = []
        for segment in segments:
            if segment.prompt.silent:
                events += self.finish(segment, FinishReason.STOP)
        return events

    def _hand_on(self, segments: Sequence[Segment]) -> list[EngineEvent]:
        """Return the events of draws that have been read, for segments that are not held."""
        events: list[EngineEvent] = []
        for segment in segments:
            if segment.waiting is not None and not segment.ended:
                drawn, segment.waiting = segment.waiting, None
                events += self.take_drawn(segment, drawn)
        return events

    def undecided(self, segment: Segment) -> list[EngineEvent]:
        """End the segment because the logits of its next draw are not finite."""
        segment.ended = True
        reason = f"draw {segment.handed_on}: the logits are not finite"
        return [Failed(segment.key, Internal(reason))]

    def take_frame(self, segment: Segment, drawn: Drawn, stop_code: int) -> Sequence[EngineEvent]:
        """Implement `take_drawn` for draws that are frames. The stop code is not a frame, and
        neither is the last allowed draw.
        """
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
        """Register a segment.

        Raises `InvalidArgument` if `new_segment` rejects the settings, if an output other than the
        engine's edge is requested, or if the history contains frames that this model can't draw.
        """
        if settings.outputs != {self.edge}:
            raise InvalidArgument(
                f"outputs: the {self.role} only generates {self.edge!r}, got "
                f"{sorted(settings.outputs)}",
                field="outputs",
            )
        known = known_frames(settings.history, self._model.code_sizes)
        segment = self._segments[key] = self.new_segment(key, settings)
        segment.known = known
        # Most sessions have only one segment, so don't expect another one after the first.
        segment.returns = key.segment > 0 or settings.live

    @torch.inference_mode()
    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Pass the chunk to the segment's prompt. The segment is assigned a slot when its first
        chunk arrives.

        Raises `InvalidArgument` if the input exceeds the limit, and `ResourceExhausted` if no slot
        is free.
        """
        segment = self._segments[key]
        segment.prompt.accept(chunk)
        rows = segment.prompt.prompt_rows or segment.prompt.ready_rows
        if rows > self._context_limit:
            raise InvalidArgument(
                f"the prompt takes {rows} {self.role} positions; the maximum is "
                f"{self._context_limit}",
                field="messages",
            )
        segment.bound(self._context_limit)
        if segment.slot is None:
            segment.slot = self._model.take_slot(key.session_id, returns=segment.returns)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the edge from which the segment needs input to continue, or None if it doesn't
        need any.
        """
        return self._segments[key].awaited_edge

    @torch.inference_mode()
    def release(self, key: SegmentKey) -> None:
        """Remove the segment and free its slot, even if draws are in flight."""
        segment = self._segments.pop(key)
        if segment.slot is not None:
            self._model.give_slot_back(segment.slot, segment.doubtful)

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the segment's current counts."""
        return _cost(self._segments[key], FinishReason.CANCELLED)

    def going(self, held: Collection[SegmentKey]) -> list[Segment]:
        """Return the segments that have not ended and are not held."""
        return [each for each in self._segments.values() if not each.ended and each.key not in held]

    def take_known(
        self, segments: Collection[Segment], parts: Sequence[PromptPart[Any]]
    ) -> list[KnownPart[Any]]:
        """Return the next rows of known frames. Together with `parts`, they don't exceed the row
        budget.
        """
        budget = self.left_of_budget(parts)
        taken = []
        for segment in segments:
            while (stop := segment.next_known_end) and stop - segment.frames <= budget:
                budget -= stop - segment.frames
                taken.append(segment.take_known(stop))
        return taken

    def left_of_budget(self, parts: Sequence[PromptPart[Any]]) -> int:
        """Return the number of rows that can still be added to the step."""
        return self._prefill_rows - sum(part.stop - part.start for part in parts)

    def tell_known(self, parts: Sequence[KnownPart[Any]]) -> list[EngineEvent]:
        """Return the events for the frames whose rows were prefilled, as if these frames had been
        drawn.

        The name of their tensor is the name of the edge.
        """
        return [Emitted(each.key, self.edge, each.step, {self.edge: each.frames}) for each in parts]

    def take_parts(self, segments: Collection[Segment]) -> list[PromptPart[Any]]:
        """Return the next prompt parts. The caller must compute all of them."""
        kept = self._model.kept
        for segment in segments:
            segment.pass_kept(kept)
        parts = next_parts(segments, self._prefill_rows)
        for part in parts:
            # The last part is followed by draws, so it has no name.
            kept.put(part.slot, part.start, part.stop, part.prompt.part_name(part.start, part.stop))
        return parts

    def finish(self, segment: Segment, reason: FinishReason) -> list[EngineEvent]:
        """Return the last events of the segment."""
        segment.ended = True
        return [
            Emitted(segment.key, self.edge, segment.frames, finish_reason=reason),
            _cost(segment, reason),
        ]


def _cost(segment: FrameSegment[Any], reason: FinishReason) -> Completed:
    """Return the segment's counts."""
    rows = segment.prompt.prompt_rows or 0
    return Completed(
        segment.key, reason, rows, segment.frames, input_cached_positions=segment.reused
    )


def next_parts(segments: Collection[FrameSegment[Prompt]], budget: int) -> list[PromptPart[Prompt]]:
    """Return the next prompt parts that fit into the row budget. Prompts with the fewest prefilled
    rows come first.

    A short prompt therefore doesn't have to wait for a long one that arrived earlier. The long
    prompt isn't starved, because the prompts that are ahead of it finish soon.

    A step that draws a segment's first frame contains no prompt parts. Playback can't start before
    this frame is available, whereas later frames are generated ahead of playback. There is only one
    such step per segment, so each new segment delays prompts by a single step.
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
