"""Determines the kernels that torch uses for attention, and the cost of new lengths.

On compute capability 9 and 10, torch prefers the attention of cuDNN. Its plans are stored per
thread and depend on every dimension, so the host has to create a new plan for each length.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch.nn.functional import scaled_dot_product_attention

from antiphon.pipelines.qwen3_omni import CODE2WAV
from antiphon.runtime.engine import InputChunk
from antiphon.values.segment import SegmentKey
from antiphon_services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from benchmarks.engines.code2wav import WANTED
from benchmarks.gpu.code2wav_rows import random_codes
from benchmarks.gpu.loaded import Stages, on_new_thread
from benchmarks.gpu.profiling import profiled, start_profiler
from benchmarks.gpu.report import HOLDS, Figures, Row
from benchmarks.gpu.scale import EAGER, scale_of, summary
from benchmarks.gpu.talker_rows import TalkerRows
from benchmarks.gpu.thinker_rows import ThinkerRows

PREFIX = "aten::_scaled_dot_product_"
BACKENDS = {
    "flash_attention": "flash",
    "flash_attention_for_cpu": "flash",
    "efficient_attention": "efficient",
    "cudnn_attention": "cudnn",
    "attention_math": "math",
}
"""The backend of each of torch's operators."""
LENGTHS = {"cuda": 64, "cpu": 4}
FIRST_LENGTH = 130
HEADS, KEY_HEADS, WIDTH, SESSIONS = 16, 2, 128, 8
"""The sizes of the released talker."""


def sdpa_rows(device: torch.device, directory: Path) -> list[Row]:
    """Return rows for the backends of every engine, and for lengths that are new to a thread."""
    start_profiler(torch.device("cpu"))
    stages = Stages(device, directory)
    rows = [Row("a checkpoint without weights", stages.write, setup=True)]
    runs = {"talker": _talker, "thinker": _thinker, "code2wav": _code2wav}
    rows += [Row(f"attention, {role}", partial(_engine, stages, run)) for role, run in runs.items()]
    rows.append(Row("attention, new lengths, cuDNN off", partial(_lengths, device, False)))
    if device.type == "cuda":
        rows.append(Row("attention, new lengths, cuDNN allowed", partial(_lengths, device, True)))
    rows.append(Row("attention, the stages are freed", lambda: stages.forget() or {}, setup=True))
    return rows


def backends_of(run: Callable[[], object]) -> Counter[str]:
    """Count the attention calls of `run` by backend. Unknown names are not changed."""
    with profiled(torch.device("cpu")) as profiler:
        run()
    names = (each.name for each in profiler.events() or ())
    found = (each.removeprefix(PREFIX) for each in names if each.startswith(PREFIX))
    # For example, "aten::_scaled_dot_product_fused_attention_overrideable", and operators of later
    # versions.
    return Counter(BACKENDS.get(each, each) for each in found)


def _engine(stages: Stages, run: Callable[[Stages], Callable[[], object]]) -> Figures:
    """Return the backends of a step. There must be attention calls, but none that use cuDNN."""

    def measure() -> Counter[str]:
        return backends_of(run(stages))

    found = on_new_thread(measure)
    return {"calls": dict(found), HOLDS: bool(found) and not found["cudnn"]}


def _talker(stages: Stages) -> Callable[[], object]:
    speakers = TalkerRows(stages).speakers(EAGER)
    for seed in range(2):
        speakers.join(DEFAULT_SAMPLING, scale_of(stages.device).prompt_rows[0], seed)
    # The first step processes the prompts, and the second one decodes.
    return lambda: [speakers.step() for _ in range(3)]


def _thinker(stages: Stages) -> Callable[[], object]:
    readers = ThinkerRows(stages).readers(EAGER)
    for _ in range(2):
        readers.ask(scale_of(stages.device).prompt_rows[0])
    return lambda: [readers.step() for _ in range(3)]


def _code2wav(stages: Stages) -> Callable[[], object]:
    stage = stages.load(CODE2WAV, EAGER, slots=2, context=64)
    key = SegmentKey("attention", 0)
    stage.engine.admit(key, WANTED)
    codes = random_codes(4, stage.facts.code_groups, stage.facts.code_entries)
    stage.engine.accept(key, InputChunk("codes", 0, {"codes": codes}))
    return stage.engine.step


def _lengths(device: torch.device, cudnn: bool) -> Figures:
    """Return the host time of attention calls with increasing lengths on a new thread."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    lengths = range(FIRST_LENGTH, FIRST_LENGTH + LENGTHS[device.type])
    queries = torch.randn(
        SESSIONS, KEY_HEADS, HEADS // KEY_HEADS, WIDTH, dtype=dtype, device=device
    )
    memory = torch.randn(SESSIONS, 2, KEY_HEADS, 512, WIDTH, dtype=dtype, device=device)

    def attend(length: int) -> None:
        keys, values = memory[:, 0, :, :length], memory[:, 1, :, :length]
        scaled_dot_product_attention(queries, keys, values)
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def measure() -> Figures:
        laps_ms = []
        for length in lengths:
            started = time.perf_counter()
            attend(length)
            laps_ms.append(1e3 * (time.perf_counter() - started))
        return {"calls": dict(backends_of(lambda: attend(lengths[0]))), **summary(laps_ms)}

    with _cudnn_allowed(cudnn):
        return on_new_thread(measure)


@contextmanager
def _cudnn_allowed(allowed: bool) -> Iterator[None]:
    kept = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(allowed)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(kept)
