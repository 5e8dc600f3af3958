"""A process that loads code2wav as its stage does, serves on another thread, and prints its memory.

A line of JSON has the resident MB once it was ready, and for each load its sessions, the page
faults of the serving thread, and the resident MB after it. The first has a chunk of every length up
to a steady one, as a spoken answer may. After the plain loads come mixed ones,
whose steps have as many shapes as those of a busy stage.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Engine, InputChunk, SegmentSettings
from antiphon.transport.heap import keep_freed_memory
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.warm_up import run_to_the_end
from antiphon_services.qwen3_omni.code2wav.load import EDGES, load
from antiphon_services.vocoder.stage import NO_SAMPLING

CONCURRENT = (1, 1, 1, 2, 4, 8, 16, 16, 16, 16, 1)
FRAMES = 48
MIXED = 4
CHUNK_FRAMES = (1, 2, 3, 4, 6, 8, 12)
CHUNKS = 20


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


def on_a_thread(work: Callable[[], None]) -> None:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def serve(engine: Engine, groups: int, name: str, sessions: int) -> None:
    """Decode the same frames for so many sessions together."""
    keys = [SegmentKey(f"{name} {index}", 0) for index in range(sessions)]
    codes = np.ones((FRAMES, groups), np.uint16)
    for key in keys:
        engine.admit(key, SegmentSettings("", NO_SAMPLING, frozenset({EDGES.audio})))
        engine.accept(
            key, InputChunk(EDGES.frames, 0, {EDGES.frames: codes}, True, FinishReason.STOP)
        )
    assert not run_to_the_end(engine, keys)


def serve_chunks(
    engine: Engine, groups: int, name: str, sessions: int, lengths: Sequence[Callable[[], int]]
) -> None:
    """Decode chunks of these lengths, one after the other, for so many sessions together."""
    keys = [SegmentKey(f"{name} {index}", 0) for index in range(sessions)]
    position = dict.fromkeys(keys, 0)
    for key in keys:
        engine.admit(key, SegmentSettings("", NO_SAMPLING, frozenset({EDGES.audio})))
    for number, length in enumerate(lengths, 1):
        last = number == len(lengths)
        for key in keys:
            codes = np.ones((length(), groups), np.uint16)
            reason = FinishReason.STOP if last else None
            tensors = {EDGES.frames: codes}
            engine.accept(key, InputChunk(EDGES.frames, position[key], tensors, last, reason))
            position[key] += len(codes)
        while not last and any(engine.awaited_edge(key) is None for key in keys):
            engine.step()
    assert not run_to_the_end(engine, keys)


def main(model: Path) -> None:
    if not keep_freed_memory():
        sys.exit("not glibc")
    torch.set_num_threads(1)
    loaded = []
    on_a_thread(lambda: loaded.append(load(model, StageConfig())))
    engine, groups = loaded[0].engine, loaded[0].facts.code_groups
    ready_mb = resident_mb()
    rows: list[tuple[int, int, float]] = []
    mixed_mb: list[float] = []

    def serve_all() -> None:
        torch.set_num_threads(1)
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        steady = range(1, PIPELINE.chunk_policy.steady + 1)
        serve_chunks(engine, groups, "first", 1, [partial(int, each) for each in steady])
        rows.append(
            (1, resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before, resident_mb())
        )
        for number, sessions in enumerate(CONCURRENT):
            before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
            serve(engine, groups, str(number), sessions)
            faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
            rows.append((sessions, faults, resident_mb()))
        draw = random.Random(25)
        for number in range(MIXED):
            lengths = [partial(draw.choice, CHUNK_FRAMES)] * CHUNKS
            serve_chunks(engine, groups, f"mixed {number}", max(CONCURRENT), lengths)
            mixed_mb.append(resident_mb())

    on_a_thread(serve_all)
    print(json.dumps({"ready_mb": ready_mb, "loads": rows, "mixed_mb": mixed_mb}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
