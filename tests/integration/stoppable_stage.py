"""code2wav as a process whose engine or interpreter hangs when told to.

`python -m tests.integration.stoppable_stage FIFO code2wav --config ...`: one letter in the FIFO is
one command. E: the engine's steps hang until G. I: the interpreter hangs, every thread of it,
until the next letter. P: every step, and every release after it, raises.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import Engine, EngineEvent, InputChunk, LoadedStage, SegmentSettings
from antiphon.runtime.server.main import main
from antiphon.values.segment import SegmentKey
from antiphon_services.stage.loading import load_stage

HOLDS_THE_INTERPRETER = ctypes.PyDLL(None)


class StoppableEngine:
    """Code2wav's engine behind a gate; see `antiphon.runtime.engine.Engine`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.gate = threading.Event()
        self.gate.set()
        self.poisoned = False

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Take a segment in."""
        self._engine.admit(key, settings)

    def accept(self, key: SegmentKey, chunk: InputChunk) -> None:
        """Store input."""
        self._engine.accept(key, chunk)

    def awaited_edge(self, key: SegmentKey) -> str | None:
        """What a segment waits for."""
        return self._engine.awaited_edge(key)

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """Step as soon as the gate is open."""
        self.gate.wait()
        self._check()
        return self._engine.step(held)

    def release(self, key: SegmentKey) -> None:
        """Free a segment."""
        self._check()
        self._engine.release(key)

    def _check(self) -> None:
        if self.poisoned:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")


def obey(fifo: int, engine: StoppableEngine) -> None:
    """Carry out what comes, for ever."""
    letter = ctypes.create_string_buffer(1)
    while True:
        match os.read(fifo, 1):
            case b"E":
                engine.gate.clear()
            case b"G":
                engine.gate.set()
            case b"I":
                HOLDS_THE_INTERPRETER.read(fifo, letter, 1)
            case b"P":
                engine.poisoned = True


def load(pipeline: Pipeline, role: str, model_dir: Path, config: StageConfig) -> LoadedStage:
    """The stage, stoppable."""
    loaded = load_stage(pipeline, role, model_dir, config)
    engine = StoppableEngine(loaded.engine)
    # Read and write: so it opens at once, and never ends.
    fifo = os.open(FIFO, os.O_RDWR)
    threading.Thread(target=obey, args=(fifo, engine), daemon=True).start()
    return replace(loaded, engine=engine)


if __name__ == "__main__":
    FIFO = sys.argv[1]
    sys.exit(main(load, sys.argv[2:]))
