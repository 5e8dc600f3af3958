"""Profiles one step of each engine: its operations, launches and waits, and a trace."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from antiphon_services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from benchmarks.gpu.loaded import Stages, on_new_thread
from benchmarks.gpu.profiling import profiled, start_profiler
from benchmarks.gpu.report import Figures, Row
from benchmarks.gpu.scale import EAGER, Way, scale_of, with_graphs
from benchmarks.gpu.talker_rows import TalkerRows
from benchmarks.gpu.thinker_rows import ThinkerRows

TABLE_ROWS, TABLE_CHARACTERS = 12, 4000


def trace_rows(device: torch.device, directory: Path, traces: Path) -> list[Row]:
    """Return rows for a talker frame and a thinker token of one session, with each setting."""
    start_profiler(device)
    stages = Stages(device, directory)
    ways = (*with_graphs(device), EAGER)
    talker = [Row(f"trace, talker, {way}", partial(_talker, stages, traces, way)) for way in ways]
    thinker = [
        Row(f"trace, thinker, {way}", partial(_thinker, stages, traces, way))
        for way in ways
        if not way.launch_ahead
    ]
    setup = Row("a checkpoint without weights", stages.write, setup=True)
    return [setup, *talker, *thinker]


def _talker(stages: Stages, traces: Path, way: Way) -> Figures:
    speakers = TalkerRows(stages).speakers(way)

    def measure() -> Figures:
        key = speakers.join(DEFAULT_SAMPLING, scale_of(stages.device).prompt_rows[0], 0)
        while not speakers.step():
            pass
        speakers.step()
        told = _traced(stages.device, speakers.step, traces / f"talker-{_file(way)}.json")
        speakers.leave([key])
        return told

    return on_new_thread(measure)


def _thinker(stages: Stages, traces: Path, way: Way) -> Figures:
    readers = ThinkerRows(stages).readers(way)

    def measure() -> Figures:
        key = readers.ask(scale_of(stages.device).prompt_rows[0])
        while not readers.step():
            pass
        told = _traced(stages.device, readers.step, traces / f"thinker-{_file(way)}.json")
        readers.leave([key])
        return told

    return on_new_thread(measure)


def _file(way: Way) -> str:
    return str(way).replace(", ", "-").replace(" ", "-")


def _traced(device: torch.device, step: Callable[[], object], path: Path) -> Figures:
    """Return the operations of a step on the device, and the path of its trace."""
    on_gpu = device.type == "cuda"
    with profiled(device) as profiler:
        step()
        if on_gpu:
            torch.cuda.synchronize(device)
    profiler.export_chrome_trace(str(path))
    events: Any = profiler.events()
    names = [each.name for each in events]
    return {
        "trace": str(path),
        "operations": sum(each.startswith("aten::") for each in names),
        "launches": sum("LaunchKernel" in each or "GraphLaunch" in each for each in names),
        "waits": sum("Synchronize" in each for each in names),
        "copies": sum(each.startswith("cudaMemcpy") for each in names),
        "longest": profiler.key_averages().table(row_limit=TABLE_ROWS)[:TABLE_CHARACTERS],
    }
