"""An engine that generates answers by masked diffusion.

A family defines its segments, which consist of the prompt, the IDs that may be drawn and the use of
these IDs. The engine takes a step for as many segments as fit into one call. It reports the steps.
When blocks are finished, it passes on their IDs, which never change again. Between two steps, a
segment can be released without any cost.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Protocol

import torch

from antiphon.errors import ResourceExhausted
from antiphon.runtime.engine import Advanced, EngineEvent, InputChunk, SegmentSettings
from antiphon.values.segment import SegmentKey
from antiphon_services.diffusion.llada import Llada
from antiphon_services.diffusion.masked_answer import MaskedAnswer, sequence_rows
from antiphon_services.stage.isolation import alone, together


class MaskedSegment(Protocol):
    """A segment of a family."""

    @property
    def answer(self) -> MaskedAnswer | None:
        """The answer, or None until the input is complete."""

    def accept(self, chunk: InputChunk) -> None:
        """Store input. Raises `AntiphonError` if it cannot be used."""

    def settled(self, ids: Sequence[int], *, done: bool) -> Sequence[EngineEvent]:
        """Return the output for further IDs that are final. If `done` is true, it includes the ends
        of all edges and `Completed`.
        """


class MaskedEngine:
    """Implements `antiphon.runtime.engine.Engine` for segments that `begin` creates.

    `role` is the role of the stage and `edge` is the edge of its input. At most `slots` segments
    are admitted. A call has at most `most_positions` positions, including padding and guidance,
    unless a single segment needs more.
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
    ) -> None:
        self._model, self._begin = model, begin
        self._role, self._edge = role, edge
        self._slots, self._most_positions = slots, most_positions
        self._segments: dict[SegmentKey, MaskedSegment] = {}
        self._failed: set[SegmentKey] = set()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Register a segment. Raises `ResourceExhausted` if all slots are in use, and the errors of
        `begin`.
        """
        if len(self._segments) == self._slots:
            raise ResourceExhausted(f"{self._role} has {self._slots} slots, and all are taken")
        self._segments[key] = self._begin(key, settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Pass input to the segment. Raises the same errors as its `accept`."""
        self._segments[key].accept(chunk)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the edge of the input until the segment has an answer, and None after that."""
        return None if self._segments[key].answer is not None else self._edge

    def release(self, key: SegmentKey) -> None:
        """Forget the segment."""
        del self._segments[key]
        self._failed.discard(key)

    @torch.inference_mode()
    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Take a step for the segments that are not in `held`. The segments that have waited
        longest come first.
        """
        events: list[EngineEvent] = []
        chosen = self._choose(held)
        if not chosen:
            return events
        for key, _ in chosen:
            self._segments[key] = self._segments.pop(key)
        answers = [answer for _, answer in chosen]
        calls = together(partial(sequence_rows, self._model), answers)
        for (key, answer), rows in zip(chosen, calls, strict=True):
            with alone(key, events, partial(self._failed.add, key)):
                before = answer.settled
                answer.advance(rows())
                events.append(Advanced(key, answer.steps_taken, answer.steps_due))
                if answer.settled > before:
                    ids = answer.ids[before : answer.settled].tolist()
                    events += self._segments[key].settled(ids, done=answer.done)
        return events

    def _choose(self, held: Collection[SegmentKey]) -> list[tuple[SegmentKey, MaskedAnswer]]:
        """Return segments whose sequences fit into one call."""
        chosen: list[tuple[SegmentKey, MaskedAnswer]] = []
        count = longest = 0
        for key, segment in self._segments.items():
            answer = segment.answer
            if answer is None or answer.done or key in held or key in self._failed:
                continue
            count, longest = count + answer.rows, max(longest, answer.length)
            if chosen and count * longest > self._most_positions:
                break
            chosen.append((key, answer))
        return chosen
