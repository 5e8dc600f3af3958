"""The engine for stages that generate answers by masked diffusion.

Each family implements its own segments, which determine the prompt, the IDs that can be drawn, and
how these IDs are converted to output. Prompts are prepared on worker threads.

In each call to the model, the engine advances as many segments as fit and reports the progress of
each. When a block of an answer is finished, its IDs are final, so the engine passes them on. A
segment can be released between any two steps at no additional cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol

import torch

from antiphon.errors import ResourceExhausted
from antiphon.runtime.engine import (
    Advanced,
    Completed,
    EngineEvent,
    InputChunk,
    SegmentSettings,
)
from antiphon.values.segment import SegmentKey
from antiphon_services.diffusion.llada import Llada
from antiphon_services.diffusion.masked_answer import MaskedAnswer, sequence_rows
from antiphon_services.stage.isolation import alone, together
from antiphon_services.stage.preparation import Preparations, wait_for_one, wake_nobody


class MaskedSegment(Protocol):
    """The interface that a family's segments implement."""

    @property
    def answer(self) -> MaskedAnswer | None:
        """The answer, or None if `begin` has not been called yet."""

    def accept(self, chunk: InputChunk) -> None:
        """Store input. Raises `AntiphonError` if the input is invalid."""

    def prepare(self, preparations: Preparations[Any]) -> Future[Any] | None:
        """Start to prepare the prompt if the input is complete, or return None otherwise."""

    def begin(self, prompt: Any) -> None:
        """Create the answer from the prepared prompt. Raises `AntiphonError` if this isn't
        possible.
        """

    def settled(self, ids: Sequence[int], *, done: bool) -> Sequence[EngineEvent]:
        """Return the output for IDs that have become final.

        If `done` is true, this includes the end of each edge and a `Completed`, unless the segment
        has already returned them.
        """

    def so_far(self) -> Completed:
        """Return the segment's current counts, with the finish reason `CANCELLED`."""


class MaskedEngine:
    """Implements `antiphon.runtime.engine.PreparingEngine` for the segments that `begin` creates.

    `role` is the stage's role, and `edge` is its input edge. `slots` is the maximum number of
    segments. `most_positions` is the maximum number of positions in a call, including padding and
    guidance. A single segment may exceed it.
    """

    def __init__(
        self,
        model: Llada,
        begin: Callable[[SegmentKey, SegmentSettings], MaskedSegment],
        *,
        role: str,
        edge: str,
        slots: int,
        most_positions: int,
        preparations: Preparations[Any] | None = None,
    ) -> None:
        self._model, self._begin = model, begin
        self._role, self._edge = role, edge
        self._slots, self._most_positions = slots, most_positions
        self._preparations = preparations or Preparations[Any]()
        self._wake: Callable[[], None] = wake_nobody
        self._segments: dict[SegmentKey, MaskedSegment] = {}
        self._preparing: dict[SegmentKey, Future[Any]] = {}
        self._ended: set[SegmentKey] = set()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. Raises `ResourceExhausted` if all slots are in use, and any error that
        `begin` raises.
        """
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{self._role}: all {self._slots} slots are in use")
        self._segments[key] = self._begin(key, settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Pass input to the segment. Once the input is complete, start to prepare the prompt.

        Raises `AntiphonError` if the segment rejects the input.
        """
        segment = self._segments[key]
        segment.accept(chunk)
        preparation = segment.prepare(self._preparations)
        if preparation is not None:
            self._preparing[key] = preparation
            preparation.add_done_callback(lambda _: self._wake())

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the input edge, or None if the prompt has been prepared or is being prepared."""
        begun = key in self._preparing or self._segments[key].answer is not None
        return None if begun else self._edge

    def prepares(self, key: SegmentKey) -> bool:
        """Return whether the segment's prompt is being prepared."""
        preparation = self._preparing.get(key)
        return preparation is not None and not preparation.done()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Set the function to call whenever a prompt has been prepared."""
        self._wake = wake

    def close(self) -> None:
        """Stop preparing prompts."""
        self._preparations.close()

    def so_far(self, key: SegmentKey) -> Completed:
        """Return the segment's current counts."""
        return self._segments[key].so_far()

    def release(self, key: SegmentKey) -> None:
        """Remove the segment and cancel the preparation of its prompt."""
        self._preparations.drop(key)
        self._preparing.pop(key, None)
        del self._segments[key]
        self._ended.discard(key)

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Advance as many segments as fit into one call to the model.

        Segments in `held` are skipped. The segments that have waited longest come first.
        """
        events: list[EngineEvent] = []
        self._preparations.begin_step()
        self._begin_prepared(held, events)
        chosen = self._choose(held)
        if not chosen and not events:
            wait_for_one([each for key, each in self._preparing.items() if key not in held])
            self._begin_prepared(held, events)
            chosen = self._choose(held)
        if not chosen:
            return events
        for key, _ in chosen:
            self._segments[key] = self._segments.pop(key)
        answers = [answer for _, answer in chosen]
        calls = together(partial(sequence_rows, self._model), answers)
        for (key, answer), rows in zip(chosen, calls, strict=True):
            with alone(key, events, partial(self._ended.add, key)):
                before = answer.settled
                answer.advance(rows())
                events.append(Advanced(key, answer.steps_taken, answer.steps_due))
                if answer.settled > before:
                    ids = answer.ids[before : answer.settled].tolist()
                    made = self._segments[key].settled(ids, done=answer.done)
                    events += made
                    if any(isinstance(each, Completed) for each in made):
                        self._ended.add(key)
        return events

    def _begin_prepared(self, held: Collection[SegmentKey], events: list[EngineEvent]) -> None:
        """Begin the segments whose prompts have been prepared."""
        ready = [key for key, each in self._preparing.items() if each.done() and key not in held]
        for key in ready:
            preparation = self._preparing.pop(key)
            with alone(key, events, partial(self._ended.add, key)):
                self._segments[key].begin(preparation.result())

    def _choose(self, held: Collection[SegmentKey]) -> list[tuple[SegmentKey, MaskedAnswer]]:
        """Return the segments to advance, whose sequences together fit into a single call."""
        chosen: list[tuple[SegmentKey, MaskedAnswer]] = []
        count = longest = 0
        for key, segment in self._segments.items():
            answer = segment.answer
            if answer is None or key in held or key in self._ended:
                continue
            count, longest = count + answer.rows, max(longest, answer.length)
            if chosen and count * longest > self._most_positions:
                break
            chosen.append((key, answer))
        return chosen
