"""Drives an engine without a runtime, for engine tests."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    Engine,
    Failed,
    InputChunk,
    PreparingEngine,
    SegmentSettings,
)
from antiphon.values.chunk import Tensor, concatenate
from antiphon.values.segment import FinishReason, SegmentKey

MAX_STEPS = 100_000
READY_TIMEOUT_S = 300.0


@dataclass(slots=True)
class SegmentOutput:
    """The output of one segment: all events in order, and how the segment ended."""

    emitted: list[Emitted] = field(default_factory=list)
    completed: Completed | None = None
    failed: Failed | None = None

    def tensors(self, edge: str) -> dict[str, Tensor]:
        """Return all tensors of an edge, joined along axis 0."""
        return concatenate([each.tensors for each in self.emitted if each.edge == edge])

    def finish_reason(self, edge: str) -> FinishReason | None:
        """Return the edge's finish reason. Raises an error if the edge ended more than once."""
        reasons = [
            each.finish_reason
            for each in self.emitted
            if each.edge == edge and each.finish_reason is not None
        ]
        if len(reasons) > 1:
            raise AssertionError(f"{edge} ended {len(reasons)} times")
        return reasons[0] if reasons else None

    def inputs_of(self, pipeline: Pipeline, role: str) -> list[InputChunk]:
        """Return the chunks that the stage `role` of the pipeline receives."""
        return [
            InputChunk(
                each.edge,
                each.position,
                each.tensors,
                each.finish_reason is not None,
                each.finish_reason,
            )
            for each in self.emitted
            if role in pipeline.edge(each.edge).consumers
        ]


def await_ready(engine: Engine, keys: Collection[SegmentKey]) -> None:
    """Wait until none of the segments is being prepared."""
    if not isinstance(engine, PreparingEngine):
        return
    woken = threading.Semaphore(0)
    engine.wake_with(lambda: woken.release())
    while any(engine.prepares(key) for key in keys):
        assert woken.acquire(timeout=READY_TIMEOUT_S), "a segment is never ready"


def advance(
    engine: Engine, outputs: Mapping[SegmentKey, SegmentOutput], *, steps: int = MAX_STEPS
) -> None:
    """Step until every segment waits for input or has ended, and release the ended segments.

    All pending preparations complete before the first step, so that the composition of a step does
    not depend on thread timing.
    """
    await_ready(engine, [key for key, out in outputs.items() if not (out.completed or out.failed)])
    for _ in range(steps):
        live = [key for key, out in outputs.items() if not (out.completed or out.failed)]
        if not any(engine.awaited_edge(key) is None for key in live):
            return
        for event in engine.step():
            output = outputs[event.key]
            match event:
                case Emitted():
                    output.emitted.append(event)
                case Completed():
                    output.completed = event
                    engine.release(event.key)
                case Failed():
                    output.failed = event
                    engine.release(event.key)
    if steps == MAX_STEPS:
        raise AssertionError(f"the engine did not come to rest in {MAX_STEPS} steps")


def run_segments(
    engine: Engine,
    segments: Mapping[SegmentKey, tuple[SegmentSettings, Sequence[InputChunk]]],
) -> dict[SegmentKey, SegmentOutput]:
    """Admit all segments, and then feed their chunks in turn, advancing the engine after each
    chunk.
    """
    outputs = {key: SegmentOutput() for key in segments}
    for key, (settings, _) in segments.items():
        engine.admit(key, settings)
    queues: list[tuple[SegmentKey, Iterable[InputChunk]]] = [
        (key, iter(chunks)) for key, (_, chunks) in segments.items()
    ]
    while queues:
        left = []
        for key, chunks in queues:
            chunk = next(iter(chunks), None)
            if chunk is None:
                continue
            if not (outputs[key].completed or outputs[key].failed):
                engine.accept(key, chunk)
            left.append((key, chunks))
        queues = left
        advance(engine, outputs)
    return outputs


def run_segment(
    engine: Engine,
    settings: SegmentSettings,
    chunks: Sequence[InputChunk],
    key: SegmentKey = SegmentKey("test", 0),  # noqa: B008 - immutable
) -> SegmentOutput:
    """Run one segment until it ends."""
    return run_segments(engine, {key: (settings, chunks)})[key]
