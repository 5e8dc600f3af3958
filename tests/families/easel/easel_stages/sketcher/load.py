"""Loads the sketcher, which has no weights."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

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
from antiphon.values.options import IMAGE, TASK
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from easel_stages.sketcher.sketch import caption, sketch

STOP = FinishReason.STOP


class Sketcher:
    """Says everything in one step."""

    def __init__(self) -> None:
        self._settings: dict[SegmentKey, SegmentSettings] = {}
        self._asked: dict[SegmentKey, str] = {}

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        self._settings[key] = settings

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        if chunk.tensors:
            parts = from_tensors(chunk.tensors).messages[-1].parts
            self._asked[key] = "".join(each.text for each in parts if isinstance(each, TextPart))

    def awaited_edge(self, key: SegmentKey) -> str | None:
        return None if key in self._asked else "input"

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        asked, self._asked = self._asked, {}
        return [event for key, text in asked.items() for event in self._sketch(key, text)]

    def release(self, key: SegmentKey) -> None:
        del self._settings[key]
        self._asked.pop(key, None)

    def _sketch(self, key: SegmentKey, text: str) -> list[EngineEvent]:
        settings = self._settings[key]
        words = "" if settings.options.get(TASK) == IMAGE else caption(text)
        said = np.frombuffer(words.encode(), np.uint8)
        tensors = {
            "text": {"ids": said.astype(np.int32), "utf8": said},
            "lines": {"greys": sketch(text, settings.sampling)},
        }
        return [
            *(Emitted(key, e, 0, tensors[e], STOP) for e in sorted(settings.outputs)),
            Completed(key, STOP, len(text.encode()), len(said)),
        ]


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """The sketcher and what it says of itself."""
    sampling = Sampling(
        temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1000
    )
    facts = StageFacts(
        model_dir.name, "chalk", "easel", sampling, input_kinds=("text",), context_limit=4096
    )
    return LoadedStage(Sketcher(), facts)
