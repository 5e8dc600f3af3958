"""An engine for segments that speak text. Prompts are prepared on separate threads."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from antiphon.runtime.engine import EngineEvent, InputChunk
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.frame_engine import FrameEngine, FrameModel, Model
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.pending_step import DrawInFlight, PendingStep
from antiphon_services.lm.spoken_text import JointSegment, SpokenTextSegment
from antiphon_services.stage.budgets import PREFILL_ROWS
from antiphon_services.stage.isolation import alone
from antiphon_services.stage.preparation import Preparations, wait_for_one, wake_nobody

Speaker = TypeVar("Speaker", bound=SpokenTextSegment[Any])


class SpokenTextEngine(FrameEngine[Speaker, Model]):
    """A `FrameEngine` that also implements `antiphon.runtime.engine.PreparingEngine`."""

    def __init__(
        self,
        model: Model,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        launch_ahead: bool = False,
        preparations: Preparations[Any] | None = None,
    ) -> None:
        super().__init__(model, context_limit, prefill_rows=prefill_rows, launch_ahead=launch_ahead)
        self._preparations = preparations or Preparations[Any]()
        self._wake: Callable[[], None] = wake_nobody

    @abstractmethod
    def begin(self, segment: Speaker, prompt: Any) -> Sequence[EngineEvent]:
        """Start the segment with its prepared prompt. Returns the events that can be sent
        immediately.
        """

    @abstractmethod
    def forward(self, segments: Sequence[Speaker], events: list[EngineEvent]) -> PendingStep | None:
        """Implement `launch`. All segments whose prompts are ready have already been started."""

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store the message. Once the message is complete, start to prepare the prompt.

        Raises `InvalidArgument` if the message can't fit into the context, and `ResourceExhausted`
        if no slot is free.
        """
        super().accept(key, chunk)
        self.prepare(self._segments[key])

    def prepare(self, segment: Speaker) -> None:
        """Start to prepare the segment's prompt if its input is complete and preparation hasn't
        started yet.
        """
        if segment.preparation is None:
            segment.preparation = segment.prompt.begin(segment.key, self._preparations)
            if segment.preparation is not None:
                segment.preparation.add_done_callback(lambda _: self._wake())

    def prepares(self, key: SegmentKey) -> bool:
        """Return whether the segment's prompt is being prepared."""
        preparation = self._segments[key].preparation
        return preparation is not None and not preparation.done()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Set the function to call whenever a prompt has been prepared."""
        self._wake = wake

    def close(self) -> None:
        """Stop preparing prompts."""
        self._preparations.close()

    def release(self, key: SegmentKey) -> None:
        """Remove the segment, cancel the preparation of its prompt, and free its slot."""
        self._preparations.drop(key)
        super().release(key)

    def wait_for_input(self, segments: Sequence[Speaker]) -> None:
        """Wait for a prompt if there is nothing else to do."""
        if not any(segment.prompt.prompt_rows for segment in segments):
            wait_for_one([each.preparation for each in segments if each.preparation is not None])

    def launch(self, segments: Sequence[Speaker], events: list[EngineEvent]) -> PendingStep | None:
        """Start the segments whose prompts have been prepared and then run one forward pass for all
        segments.
        """
        for segment in segments:
            if (made := segment.preparation) is not None and made.done():
                segment.preparation = None
                with alone(segment.key, events, segment.end):
                    prompt = made.result()
                    segment.prompt.hold(prompt)
                    events += self.begin(segment, prompt)
        return self.forward([each for each in segments if not each.ended], events)


class JointModel(FrameModel, Protocol):
    """A model that computes a whole step, with the prompt parts and draws of all segments, in a
    single call.
    """

    def step(
        self, parts: Sequence[PromptPart[Any]], draws: Sequence[FrameDraw[Any]]
    ) -> Sequence[DrawInFlight]:
        """Append the rows of all parts and draws and then draw once for each element of `draws`, in
        order.
        """


Joint = TypeVar("Joint", bound=JointModel)
JointSpeaker = TypeVar("JointSpeaker", bound=JointSegment[Any])


class JointSpokenEngine(SpokenTextEngine[JointSpeaker, Joint]):
    """A `SpokenTextEngine` that uses a `JointModel`.

    Each row depends on the previous draw, so steps can't be launched ahead.
    """

    def __init__(
        self,
        model: Joint,
        context_limit: int,
        *,
        prefill_rows: int = PREFILL_ROWS,
        preparations: Preparations[Any] | None = None,
    ) -> None:
        super().__init__(model, context_limit, prefill_rows=prefill_rows, preparations=preparations)

    def forward(
        self, segments: Sequence[JointSpeaker], events: list[EngineEvent]
    ) -> PendingStep | None:
        """Make one call for all parts and draws. Returns None if there are no draws."""
        parts = self.take_parts(segments)
        drawing = [each for each in segments if each.can_draw]
        if not parts and not drawing:
            return None
        drawn = self._model.step(parts, [each.next_draw() for each in drawing])
        return PendingStep(list(zip(drawing, drawn, strict=True))) if drawing else None
