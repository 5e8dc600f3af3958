"""Measures calls of code2wav and their accuracy by precision."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from antiphon.runtime.engine import Failed, InputChunk
from antiphon.values.segment import SegmentKey
from antiphon_services.qwen3_omni.code2wav.load import EDGES as CODE2WAV_EDGES
from antiphon_services.qwen3_omni.code2wav.vocoder import vocoder_of
from antiphon_services.vocoder.engine import VocoderEngine
from antiphon_services.vocoder.pace import ACCELERATOR
from antiphon_services.vocoder.stream import StreamDecoder
from benchmarks.engines.code2wav import WANTED
from benchmarks.engines.stopwatch import stopwatch_of
from benchmarks.gpu.loaded import on_new_thread
from benchmarks.gpu.report import Figures, Row
from benchmarks.gpu.scale import (
    EAGER,
    Way,
    bucketing_of,
    precision_of,
    scale_of,
    summary,
    to_host_of,
)
from benchmarks.gpu.weights import random_code2wav, sizes_of, whole_config

SYNCHRONOUS = Way(True, async_to_host=False)
LOADS = {"cuda": ((1, 4), (1, 64), (16, 4), (64, 1)), "cpu": ((1, 2), (2, 2))}
PRECISIONS = {"cuda": ("float32", "tf32", "bfloat16"), "cpu": ("float32",)}


def code2wav_rows(device: torch.device, way: Way) -> list[Row]:
    """Return rows for calls with 64 frames in total for 1, 16 and 64 sessions, by precision."""
    loads = LOADS[device.type] if way in (Way(True), EAGER) else LOADS[device.type][-1:]
    return [
        Row(
            f"code2wav, {precision}, {way}, {sessions} sessions of {frames} frames",
            partial(_code2wav, device, precision, way, sessions, frames),
        )
        for precision in PRECISIONS[device.type]
        for sessions, frames in loads
    ]


def exactness_rows(device: torch.device) -> list[Row]:
    """Return rows that measure the accuracy of other precisions compared to float32."""
    exact = ("tf32", "bfloat16") if device.type == "cuda" else ("bfloat16",)
    return [
        Row(f"code2wav, {each}, SNR against float32", partial(_code2wav_snr, device, each))
        for each in exact
    ]


def _code2wav(
    device: torch.device, precision: str, way: Way, sessions: int, frames: int
) -> Figures:
    return on_new_thread(partial(_calls, device, precision, way, sessions, frames))


def _calls(device: torch.device, precision: str, way: Way, sessions: int, frames: int) -> Figures:
    config = whole_config(sizes_of(device))
    rounds = scale_of(device).calls
    with precision_of(precision) as dtype:
        decoder = StreamDecoder(vocoder_of(random_code2wav(config, dtype, device)))
        engine = VocoderEngine(
            decoder,
            CODE2WAV_EDGES,
            (rounds + 3) * frames,
            sessions,
            ACCELERATOR,
            to_host_of(device, way),
            bucketing_of(way, device),
            steady=frames,
        )
        keys = [SegmentKey(f"session {index}", 0) for index in range(sessions)]
        for key in keys:
            engine.admit(key, WANTED)
        stopwatch = stopwatch_of(device)
        codes = random_codes(frames, decoder.groups, decoder.entries)
        laps: list[float] = []
        for turn in range(rounds + 3):
            chunk = InputChunk("codes", turn * frames, {"codes": codes})
            for key in keys:
                engine.accept(key, chunk)
            stopwatch.start()
            for event in engine.step():
                if isinstance(event, Failed):
                    raise event.error
            stopwatch.lap()
            laps += stopwatch.laps_ms()
            _finish(engine, keys)
    # The first calls have different shapes, or select their kernels.
    figures = {"frames": sessions * frames, "first_calls_ms": [round(each, 3) for each in laps[:3]]}
    return figures | summary(laps[3:])


def _finish(engine: VocoderEngine, keys: Sequence[SegmentKey]) -> None:
    """Decode the input that remains after a step."""
    while any(engine.awaited_edge(key) is None for key in keys):
        engine.step()


def _code2wav_snr(device: torch.device, precision: str) -> Figures:
    config = whole_config(sizes_of(device))
    module = random_code2wav(config, torch.float32, device)
    decoder = StreamDecoder(vocoder_of(module))
    codes = random_codes(50, decoder.groups, decoder.entries)
    given = torch.from_numpy(codes.astype(np.int64)).T[None].to(device)
    made: list[torch.Tensor] = []
    for each in ("float32", precision):
        with precision_of(each) as dtype, torch.inference_mode():
            # Use rounded weights of the same model instead of a different model.
            made.append(module.to(dtype)(given)[0, 0].double().cpu())
    exact, rounded = made
    noise = (rounded - exact).norm()
    return {
        "snr_db": round(20 * float(torch.log10(exact.norm() / noise)), 1) if noise else "equal",
        "largest_error": float((rounded - exact).abs().max()),
        "largest_sample": float(exact.abs().max()),
    }


def random_codes(frames: int, groups: int, entries: int) -> np.ndarray[Any, Any]:
    """Return uint16 codes of shape [frames, groups]. They are the same in each call."""
    return np.random.default_rng(0).integers(0, entries, (frames, groups)).astype(np.uint16)
