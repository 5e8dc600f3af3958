"""Engines without computation that have the pace and the payloads of Qwen3-Omni's stages.

The thinker and the talker generate one position of every segment per step. A step takes at least
`STEP_S`, like that of a real engine. Sleeping does not use CPU time. Code2wav decodes all frames
that have arrived.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from antiphon.pipelines.qwen3_omni import CODE2WAV, TALKER, THINKER
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    Engine,
    EngineEvent,
    InputChunk,
    LoadedStage,
    SegmentSettings,
)
from antiphon.values.chunk import Tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import FACTS

STEP_S = 0.020
GROUPS = 16
SAMPLE_RATE_HZ = 24_000
SAMPLES_PER_FRAME = 1920


@dataclass(slots=True)
class _Running:
    """A segment, with the number of positions that can be generated and that have been
    generated.
    """

    outputs: frozenset[str]
    available: int = 0
    made: int = 0
    finish_reason: FinishReason | None = None
    ended: bool = False


class IdleEngine:
    """The engine of a stage, which generates as many positions as it receives."""

    def __init__(self, role: str, positions: int) -> None:
        self._role = role
        self._positions = positions
        self._segments: dict[SegmentKey, _Running] = {}
        self._due = time.monotonic()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Add a segment. The thinker does not need any input."""
        running = _Running(settings.outputs)
        if self._role == THINKER:
            running.available, running.finish_reason = self._positions, FinishReason.STOP
        self._segments[key] = running

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Count the positions that have arrived."""
        if chunk.edge not in ("tokens", "codes"):
            return
        running = self._segments[key]
        running.available += sum(len(tensor) for tensor in chunk.tensors.values())
        running.finish_reason = chunk.finish_reason

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """Return the input edge if there is nothing to generate."""
        running = self._segments[key]
        can_step = running.made < running.available or running.finish_reason is not None
        if can_step and not running.ended:
            return None
        return {THINKER: "input", TALKER: "tokens", CODE2WAV: "codes"}[self._role]

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Generate one position of each segment. Code2wav generates all available positions."""
        if self._role != CODE2WAV:
            self._wait_due()
        ready = [k for k in self._segments if k not in held and self.awaited_edge(k) is None]
        return [event for key in ready for event in self._advance(key, self._segments[key])]

    def release(self, key: SegmentKey) -> None:
        """Remove a segment."""
        del self._segments[key]

    def _wait_due(self) -> None:
        now = time.monotonic()
        time.sleep(max(0.0, self._due - now))
        self._due = max(self._due, now) + STEP_S

    def _advance(self, key: SegmentKey, running: _Running) -> list[EngineEvent]:
        left = running.available - running.made
        count = left if self._role == CODE2WAV else min(1, left)
        position, running.made = running.made, running.made + count
        ends = running.finish_reason is not None and running.made == running.available
        reason = running.finish_reason if ends else None
        running.ended = ends
        scale = SAMPLES_PER_FRAME if self._role == CODE2WAV else 1
        made: list[EngineEvent] = [
            Emitted(key, edge, position * scale, _tensors(edge, count), reason)
            for edge in ("tokens", "text", "prompt", "codes", "audio")
            if edge in running.outputs and (edge != "prompt" or ends)
        ]
        if reason is None:
            return made
        return [*made, Completed(key, reason, running.available, running.made * scale)]


def _tensors(edge: str, count: int) -> Tensors:
    """Return the tensors of a number of positions."""
    if not count or edge == "prompt":
        return {}
    match edge:
        case "tokens":
            return {"ids": np.zeros(count, np.int32)}
        case "text":
            return {"ids": np.zeros(count, np.int32), "utf8": np.full(4 * count, 97, np.uint8)}
        case "codes":
            return {"codes": np.zeros((count, GROUPS), np.uint16)}
        case _:
            samples = np.zeros(count * SAMPLES_PER_FRAME, np.float32)
            return {"samples": samples, "codes": np.zeros((count, GROUPS), np.uint16)}


def load(role: str, positions: int) -> LoadedStage:
    """Return the engine of a stage and its description."""
    engine: Engine = IdleEngine(role, positions)
    return LoadedStage(
        engine, replace(FACTS, sample_rate_hz=SAMPLE_RATE_HZ, samples_per_frame=SAMPLES_PER_FRAME)
    )
