"""An engine of answers by masked diffusion.

A family defines its segments: the prompt, what may be drawn and what becomes of the ids. Worker
threads prepare the prompts. The engine takes a step of as many segments as fit into one call. It
reports steps, and passes on ids as blocks are finished, which never change again. Between two steps
a segment can be released at no cost.
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
    """A segment of a family."""

    @property
    def answer(self) -> MaskedAnswer | None:
        """The answer; None until the segment has begun."""

    def accept(self, chunk: InputChunk) -> None:
        """Store input. Raises `AntiphonError` if it is unusable."""

    def prepare(self, preparations: Preparations[Any]) -> Future[Any] | None:
        """Start preparing the prompt once the input is complete; return None at other times."""

    def begin(self, prompt: Any) -> None:
        """Take the prepared prompt, from which the answer follows. Raises `AntiphonError`."""

    def settled(self, ids: Sequence[int], *, done: bool) -> Sequence[EngineEvent]:
        """Return the output of further final ids, and with `done` the ends of all edges and
        `Completed`. A segment may end before."""

    def so_far(self) -> Completed:
        """Return the counts so far, with the finish reason `CANCELLED`."""


class MaskedEngine:
    """Implements `antiphon.runtime.engine.PreparingEngine` for segments that `begin` makes.

    `role` is the stage's, `edge` that of its input. At most `slots` segments are admitted. A call
    has at most `most_positions` positions, padding and guidance included, but at least one segment.
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
        """Raises `ResourceExhausted` when all slots are taken, and what `begin` does."""
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{self._role} has {self._slots} slots, and all are taken")
        self._segments[key] = self._begin(key, settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Pass input to the segment, whose prompt is prepared when it is complete. Raises what that
        does."""
        segment = self._segments[key]
        segment.accept(chunk)
        preparation = segment.prepare(self._preparations)
        if preparation is not None:
            self._preparing[key] = preparation
            preparation.add_done_callback(lambda _: self._wake())

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """The input's edge until the segment's prompt is prepared, then None."""
        begun = key in self._preparing or self._segments[key].answer is not None
        return None if begun else self._edge

    def prepares(self, key: SegmentKey) -> bool:
        """Return whether the segment's prompt is being prepared."""
        preparation = self._preparing.get(key)
        return preparation is not None and not preparation.done()

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Call `wake` whenever a prompt is prepared."""
        self._wake = wake

    def close(self) -> None:
        """Stop preparing prompts."""
        self._preparations.close()

    def so_far(self, key: SegmentKey) -> Completed:
        """See `MaskedSegment.so_far`."""
        return self._segments[key].so_far()

    def release(self, key: SegmentKey) -> None:
        """Forget the segment."""
        self._preparations.drop(key)
        self._preparing.pop(key, None)
        del self._segments[key]
        self._ended.discard(key)

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Take a step of the segments that are not `held`, those first that waited longest."""
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
        """Begin the segments whose prompts are prepared."""
        ready = [key for key, each in self._preparing.items() if each.done() and key not in held]
        for key in ready:
            preparation = self._preparing.pop(key)
            with alone(key, events, partial(self._ended.add, key)):
                self._segments[key].begin(preparation.result())

    def _choose(self, held: Collection[SegmentKey]) -> list[tuple[SegmentKey, MaskedAnswer]]:
        """Segments whose sequences fit into one call."""
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
