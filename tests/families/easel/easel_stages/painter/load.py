"""Loads the painter, which reports its steps."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from easel import SIZES, Lines

from antiphon.deployment.schema import StageConfig
from antiphon.runtime.engine import (
    Advanced,
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
from antiphon.wire.images import image_parts
from easel_stages.painter.png import paint, png

DEFAULT_STEPS = 8
STOP = FinishReason.STOP


@dataclass
class Painting:
    size: str
    due: int
    until: str
    lines: Lines | None = None
    done: int = 0


class Painter:
    """One step of every painting a step."""

    def __init__(self) -> None:
        self._paintings: dict[SegmentKey, Painting] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        size = cast(str, settings.options.get("size", SIZES[0])).casefold()
        due = int(cast(float, settings.options.get("steps", DEFAULT_STEPS)))
        self._paintings[key] = Painting(size, due, cast(str, settings.options.get("until", "")))

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        self._paintings[key].lines = chunk.tensors["greys"]

    def awaited_edge(self, key: SegmentKey) -> str | None:
        painting = self._paintings[key]
        return "lines" if painting.lines is None or painting.done > painting.due else None

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        ready = [key for key in self._paintings if self.awaited_edge(key) is None]
        return [event for key in ready for event in self._paint(key, self._paintings[key])]

    def release(self, key: SegmentKey) -> None:
        del self._paintings[key]

    def _paint(self, key: SegmentKey, painting: Painting) -> list[EngineEvent]:
        if painting.done == 1 and painting.until and not Path(painting.until).exists():
            time.sleep(0.01)
            return []
        painting.done += 1
        if painting.done <= painting.due:
            return [Advanced(key, painting.done, painting.due)]
        assert painting.lines is not None
        pixels = paint(painting.lines, painting.size)
        data, row = image_parts(png(pixels), positions=len(painting.lines))
        return [
            Emitted(key, "image", 0, data),
            Emitted(key, "image", 0, row, STOP),
            Completed(key, STOP, len(painting.lines), 1),
        ]


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """The painter and what it says of itself."""
    sampling = Sampling(
        temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1
    )
    return LoadedStage(Painter(), StageFacts(model_dir.name, "chalk", "easel", sampling))
