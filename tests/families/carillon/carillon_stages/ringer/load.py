"""Loads the ringer: it sees one stroke further than it rings, and can be primed."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from carillon import SAMPLE_RATE_HZ, SAMPLES_PER_FRAME, Strokes

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.engine import (
    Completed,
    Emitted,
    EngineEvent,
    InputChunk,
    LoadedStage,
    SegmentSettings,
    StageFacts,
)
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from carillon_stages.ringer.bells import Tower


@dataclass
class Ringing:
    tower: Tower = field(default_factory=Tower)
    # The first of these was rung last; `primes` of them are rung for nobody.
    strokes: list[Strokes] = field(default_factory=list)
    primes: int = 0
    rung: int = 0
    finish_reason: FinishReason | None = None
    ended: bool = False


class Ringer:
    """Rings whatever can be rung."""

    def __init__(self) -> None:
        self._ringing: dict[SegmentKey, Ringing] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        self._ringing[key] = Ringing()

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        ringing = self._ringing[key]
        strokes = list(chunk.tensors.get("codes", np.empty((0, 2), np.uint16)))
        ringing.strokes += strokes
        ringing.primes += len(strokes) if chunk.prime else 0
        ringing.finish_reason = chunk.finish_reason

    def awaited_edge(self, key: SegmentKey) -> str | None:
        ringing = self._ringing[key]
        ready = len(ringing.strokes) > 1 or ringing.finish_reason is not None
        return None if ready and not ringing.ended else "strokes"

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        ready = [k for k in self._ringing if k not in held and self.awaited_edge(k) is None]
        return [event for key in ready for event in self._ring(key, self._ringing[key])]

    def release(self, key: SegmentKey) -> None:
        del self._ringing[key]

    def _ring(self, key: SegmentKey, ringing: Ringing) -> list[EngineEvent]:
        last = ringing.strokes[-1:] if ringing.finish_reason is not None else []
        ahead = [*ringing.strokes, *last]
        sounds, codes = [], []
        for stroke, following in itertools.pairwise(ahead):
            sound = ringing.tower.ring(stroke, following)
            ringing.strokes.pop(0)
            if ringing.primes:
                ringing.primes -= 1
                continue
            sounds.append(sound)
            codes.append(stroke)
        position = ringing.rung * SAMPLES_PER_FRAME
        ringing.rung += len(sounds)
        tensors = {"samples": np.concatenate(sounds), "codes": np.stack(codes)} if sounds else {}
        reason = ringing.finish_reason
        if reason is None:
            return [Emitted(key, "audio", position, tensors)] if tensors else []
        ringing.ended = True
        return [
            Emitted(key, "audio", position, tensors, reason),
            Completed(key, reason, ringing.rung, ringing.rung * SAMPLES_PER_FRAME),
        ]


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """The ringer and what it says of itself."""
    sampling = Sampling(
        temperature=0.0, top_k=1, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1
    )
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint="bronze",
        engine="bells",
        default_sampling=sampling,
        sample_rate_hz=SAMPLE_RATE_HZ,
        samples_per_frame=SAMPLES_PER_FRAME,
        code_groups=2,
        code_entries=256,
    )
    return LoadedStage(Ringer(), facts)
