"""Loads the stage, which needs no model."""

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
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey

NO_SAMPLING = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1)


class EchoEngine:
    """Answers with the text of the last message; a byte is a token."""

    def __init__(self) -> None:
        self._texts: dict[SegmentKey, bytes] = {}
        self._answered: set[SegmentKey] = set()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Needs nothing."""

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Read the conversation."""
        if chunk.tensors:
            parts = from_tensors(chunk.tensors).messages[-1].parts
            text = "".join(each.text for each in parts if isinstance(each, TextPart))
            self._texts[key] = text.encode()

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """`input` until it has come, and after the answer."""
        return None if key in self._texts and key not in self._answered else "input"

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Answer whoever has asked."""
        ready = [key for key in self._texts if key not in held and key not in self._answered]
        self._answered.update(ready)
        return [event for key in ready for event in self._answer(key)]

    def release(self, key: SegmentKey) -> None:
        """Forget a segment."""
        self._texts.pop(key, None)
        self._answered.discard(key)

    def _answer(self, key: SegmentKey) -> tuple[EngineEvent, ...]:
        utf8 = np.frombuffer(self._texts[key], np.uint8)
        tensors = {"ids": utf8.astype(np.int32), "utf8": utf8}
        stop = FinishReason.STOP
        return Emitted(key, "text", 0, tensors, stop), Completed(key, stop, len(utf8), len(utf8))


def load(model_dir: Path, config: StageConfig) -> LoadedStage:
    """The stage, ready to run."""
    facts = StageFacts(model_dir.name, "no weights", "echo", NO_SAMPLING, input_kinds=("text",))
    return LoadedStage(EchoEngine(), facts)
