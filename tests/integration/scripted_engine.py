"""An engine that plays a script, for stages of families that there are none of yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence

from antiphon.runtime.engine import (
    EngineEvent,
    InputChunk,
    LoadedStage,
    SegmentSettings,
    StageFacts,
)
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey

NO_SAMPLING = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1)
Chunks = deque[InputChunk]
Script = Callable[[SegmentKey, Chunks], Iterator[EngineEvent | None]]


def facts(model: str, *, sample_rate_hz: int = 0) -> StageFacts:
    """What a stage tells that reads text."""
    return StageFacts(
        model, "none", "script", NO_SAMPLING, sample_rate_hz=sample_rate_hz, input_kinds=("text",)
    )


def loaded(script: Script, told: StageFacts, edge: str = "input") -> LoadedStage:
    """A stage that plays the script, whose input comes on that edge."""
    return LoadedStage(ScriptedEngine(script, edge), told)


class ScriptedEngine:
    """One event of each segment's script a step; None waits for more input.

    A script takes its input from the left of the deque.
    """

    def __init__(self, script: Script, edge: str) -> None:
        self._script = script
        self._edge = edge
        self._chunks: dict[SegmentKey, Chunks] = {}
        self._playing: dict[SegmentKey, Iterator[EngineEvent | None]] = {}
        self._waiting: set[SegmentKey] = set()

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Begin the script."""
        self._chunks[key] = deque()
        self._playing[key] = self._script(key, self._chunks[key])
        self._waiting.add(key)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Keep input for the script."""
        self._chunks[key].append(chunk)
        self._waiting.discard(key)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """The edge of the input while the script waits."""
        return self._edge if key in self._waiting else None

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """The next event of every script that can go on."""
        ready = [key for key in self._playing if key not in held and key not in self._waiting]
        return [event for key in ready if (event := self._advance(key)) is not None]

    def release(self, key: SegmentKey) -> None:
        """Forget a segment."""
        del self._chunks[key], self._playing[key]
        self._waiting.discard(key)

    def _advance(self, key: SegmentKey) -> EngineEvent | None:
        event = next(self._playing[key], None)
        if event is None:
            self._waiting.add(key)
        return event
