"""Loads the composer, which has no weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
from carillon import Strokes

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
from antiphon.values.conversation import TextPart, from_tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from carillon_stages.composer.score import compose, strokes_of


@dataclass
class Composition:
    settings: SegmentSettings
    strokes: Strokes | None = None
    echoed: bool = False
    made: int = 0
    ended: bool = False


class Composer:
    """One stroke a step."""

    def __init__(self) -> None:
        self._compositions: dict[SegmentKey, Composition] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        self._compositions[key] = Composition(settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        composition = self._compositions[key]
        (message,) = from_tensors(chunk.tensors).messages
        text = "".join(part.text for part in message.parts if isinstance(part, TextPart))
        settings = composition.settings
        mood = cast(str, settings.options.get("mood", "major"))
        tempo = cast(float, settings.options.get("tempo", 1))
        composition.strokes = compose(text, settings.sampling, mood, tempo)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        return "letter" if self._compositions[key].strokes is None else None

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        ready = [k for k in self._compositions if k not in held and self.awaited_edge(k) is None]
        return [event for key in ready for event in self._advance(key, self._compositions[key])]

    def release(self, key: SegmentKey) -> None:
        del self._compositions[key]

    def _advance(self, key: SegmentKey, composition: Composition) -> list[EngineEvent]:
        assert composition.strokes is not None
        echo = composition.settings.options.get("echo")
        if isinstance(echo, np.ndarray) and not composition.echoed:
            composition.echoed = True
            return [Emitted(key, "strokes", 0, {"codes": strokes_of(echo)}, prime=True)]
        if composition.ended:
            # Until the runtime releases it.
            return []
        first, total = composition.made, len(composition.strokes)
        stroke = {"codes": composition.strokes[first : first + 1]} if total else {}
        composition.made = min(first + 1, total)
        composition.ended = composition.made == total
        if not composition.ended:
            return [Emitted(key, "strokes", first, stroke)]
        reason = FinishReason.STOP
        return [
            Emitted(key, "strokes", first, stroke, reason),
            Completed(key, reason, input_positions=1, output_positions=total),
        ]


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """The composer and what it says of itself."""
    sampling = Sampling(
        temperature=0.0, top_k=1, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1000
    )
    facts = StageFacts(
        model=model_dir.name,
        checkpoint_fingerprint="bronze",
        engine="bells",
        default_sampling=sampling,
        input_kinds=("text",),
        max_input_text_bytes=1 << 16,
        code_groups=2,
        code_entries=256,
    )
    return LoadedStage(Composer(), facts)
