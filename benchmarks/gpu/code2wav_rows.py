"""What a call of code2wav takes, by precision, and how exact that is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from antiphon.runtime.engine import Failed, InputChunk
from antiphon.segment import SegmentKey
from benchmarks.engines.code2wav import WANTED
from benchmarks.engines.stopwatch import stopwatch_of
from benchmarks.gpu.loads import (
    Way,
    bucketing_of,
    precision_of,
    scale_of,
    summary,
    to_host_of,
)
from benchmarks.gpu.report import Figures, Row, mirrored
from benchmarks.gpu.weights import (
    random_code2wav,
    sizes_of,
    whole_config,
)
from services.qwen3_omni.code2wav.load import EDGES as CODE2WAV_EDGES
from services.qwen3_omni.code2wav.vocoder import vocoder_of
from services.vocoder.engine import VocoderEngine
from services.vocoder.pace import ACCELERATOR
from services.vocoder.stream import StreamDecoder


def code2wav_rows(device: torch.device) -> list[Row]:
    """A call of 64 frames for 1, 16 and 64 sessions, by precision; and how exact each is."""
    precisions = ("float32", "tf32", "bfloat16") if device.type == "cuda" else ("float32",)
    loads = ((1, 4), (1, 64), (16, 4), (64, 1)) if device.type == "cuda" else ((1, 2), (2, 2))
    rows = mirrored(
        [
            Row(
                f"code2wav, {precision}, {way}, {sessions} sessions of {frames} frames",
                partial(_code2wav, device, precision, way, sessions, frames),
            )
            for precision in precisions
            for way in (Way(False), Way(True))
            for sessions, frames in loads
        ]
    )
    exact = ("tf32", "bfloat16") if device.type == "cuda" else ("bfloat16",)
    rows += [
        Row(f"code2wav, {each}, SNR against float32", partial(_code2wav_snr, device, each))
        for each in exact
    ]
    return rows


def _code2wav(
    device: torch.device, precision: str, way: Way, sessions: int, frames: int
) -> Figures:
    config = whole_config(sizes_of(device))
    rounds = scale_of(device).rounds
    with precision_of(precision) as dtype:
        decoder = StreamDecoder(vocoder_of(random_code2wav(config, dtype, device)))
        engine = VocoderEngine(
            decoder,
            CODE2WAV_EDGES,
            (rounds + 3) * frames,
            sessions,
            ACCELERATOR,
            to_host_of(device),
            bucketing_of(way, device),
            steady=frames,
        )
        keys = [SegmentKey(f"session {index}", 0) for index in range(sessions)]
        for key in keys:
            engine.admit(key, WANTED)
        stopwatch = stopwatch_of(device)
        codes = _codes(decoder, frames)
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
    # The first calls are of other shapes, or choose their kernels.
    return summary(laps[3:]) | {"frames": sessions * frames}


def _finish(engine: VocoderEngine, keys: Sequence[SegmentKey]) -> None:
    """Decode what one step has not."""
    while any(engine.awaited_edge(key) is None for key in keys):
        engine.step()


def _code2wav_snr(device: torch.device, precision: str) -> Figures:
    config = whole_config(sizes_of(device))
    module = random_code2wav(config, torch.float32, device)
    codes = _codes(StreamDecoder(vocoder_of(module)), 50)
    given = torch.from_numpy(codes.astype(np.int64)).T[None].to(device)
    made: list[torch.Tensor] = []
    for each in ("float32", precision):
        with precision_of(each) as dtype, torch.inference_mode():
            # Rounded weights of one model, not a model of its own.
            made.append(module.to(dtype)(given)[0, 0].double().cpu())
    exact, rounded = made
    noise = (rounded - exact).norm()
    return {
        "snr_db": round(20 * float(torch.log10(exact.norm() / noise)), 1) if noise else "equal",
        "largest_error": float((rounded - exact).abs().max()),
        "largest_sample": float(exact.abs().max()),
    }


def _codes(decoder: StreamDecoder, frames: int) -> np.ndarray[Any, Any]:
    shape = (frames, decoder.groups)
    return np.random.default_rng(0).integers(0, decoder.entries, shape).astype(np.uint16)
