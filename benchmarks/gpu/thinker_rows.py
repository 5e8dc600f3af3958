"""Measures steps of the torch thinker."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from itertools import count

import numpy as np

from antiphon.pipelines.qwen3_omni import THINKER
from antiphon.runtime.engine import Emitted, Engine, Failed, InputChunk, SegmentSettings
from antiphon.values.conversation import to_tensors
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.thinker.thinker_segment import PROMPT, TEXT, TOKENS
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import await_ready
from benchmarks.engines.stopwatch import stopwatch_of
from benchmarks.gpu.loaded import FreshLengths, Stages, on_new_thread
from benchmarks.gpu.report import Figures, Row
from benchmarks.gpu.scale import EAGER, Way, scale_of, summary

AROUND = 16
"""More than the number of prompt rows in the chat template."""


class Readers:
    """Sessions whose prompts consist of random letters. Most of the letters are separate tokens."""

    def __init__(self, engine: Engine, tokens: int) -> None:
        self._engine, self._tokens = engine, tokens
        self._numbers = count()

    def ask(self, letters: int) -> SegmentKey:
        """Add a session that is ready to step. Its reply only ends at its limit."""
        number = next(self._numbers)
        key = SegmentKey(f"session {number}", 0)
        sampling = Sampling(0.0, 0, 1.0, 1.0, 0, self._tokens)
        outputs = frozenset({PROMPT, TEXT, TOKENS})
        drawn = np.random.default_rng(number).integers(ord("a"), ord("z") + 1, letters)
        question = conversation(("user", bytes(drawn.astype(np.uint8)).decode()))
        tensors = to_tensors(question)
        self._engine.admit(key, SegmentSettings("", sampling, outputs))
        self._engine.accept(key, InputChunk("input", 0, tensors, True, FinishReason.STOP))
        await_ready(self._engine, [key])
        return key

    def step(self) -> set[SegmentKey]:
        """Run a step. Returns the sessions that received a token, and raises the error if one
        failed.
        """
        given = set()
        for event in self._engine.step():
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Emitted) and event.edge == TOKENS and event.tensors:
                given.add(event.key)
        return given

    def leave(self, keys: Collection[SegmentKey]) -> None:
        """End sessions."""
        for key in keys:
            self._engine.release(key)


class ThinkerRows:
    """Rows of a thinker. The prompts have lengths that no other row has used."""

    def __init__(self, stages: Stages) -> None:
        self._stages, self._scale = stages, scale_of(stages.device)
        self._lengths = FreshLengths(tuple(self._scale.prompt_rows))

    def tokens(self, way: Way) -> list[Row]:
        """Return rows for tokens of sessions with prompts of different lengths."""
        return [
            Row(f"thinker, {way}, {count} sessions", partial(self._decode, way, count))
            for count in self._scale.sessions
        ]

    def prefills(self) -> list[Row]:
        """Return rows for a single prompt up to its first token."""
        return [
            Row(f"thinker, prefill of {letters}", partial(self._prefill, letters))
            for letters in self._scale.prefills
        ]

    def readers(self, way: Way) -> Readers:
        """Return sessions on a thinker with these settings, which has been warmed up like a
        stage.
        """
        scale = self._scale
        slots = max(scale.sessions)
        stage = self._stages.load(THINKER, way, slots=slots, context=scale.context)
        return Readers(stage.engine, 4 * (slots + scale.tokens))

    def _decode(self, way: Way, sessions: int) -> Figures:
        readers, stopwatch = self.readers(way), stopwatch_of(self._stages.device)
        lengths = self._lengths.take(sessions)

        def measure() -> Figures:
            # If the sessions were started one at a time, steps in progress would include other
            # prompts.
            keys = {readers.ask(letters) for letters in lengths}
            waiting = set(keys)
            while waiting:
                waiting -= readers.step()
            stopwatch.start()
            given = 0
            for _ in range(scale_of(self._stages.device).tokens):
                given += len(readers.step())
                stopwatch.lap()
            laps_ms = stopwatch.laps_ms()
            readers.leave(keys)
            return {"tokens": given, **summary(laps_ms)}

        return on_new_thread(measure)

    def _prefill(self, letters: int) -> Figures:
        scale, stopwatch = self._scale, stopwatch_of(self._stages.device)
        # Several random letters rarely form a single token. The maximum is one token per byte.
        stage = self._stages.load(THINKER, EAGER, slots=1, context=max(scale.prefills) + 4 * AROUND)
        readers = Readers(stage.engine, 4)

        def measure() -> Figures:
            laps_ms: list[float] = []
            for less in range(min(5, scale.calls)):
                key = readers.ask(letters - less)
                stopwatch.start()
                while not readers.step():
                    pass
                stopwatch.lap()
                laps_ms += stopwatch.laps_ms()
                readers.leave([key])
            return {"letters": letters, **summary(laps_ms)}

        return on_new_thread(measure)
