"""Small measured fleets and loads, for tests."""

from __future__ import annotations

from typing import Any

from antiphon_tools.sizing.measured import MeasuredPipeline, measured_of
from antiphon_tools.sizing.offered import Lengths, OfferedCall, OfferedLoad


def reading_fleet(**gateway: Any) -> MeasuredPipeline:
    """Two stages with one slot and whole seconds; messages cost nothing."""
    return measured_of(
        {
            "network_s": 0,
            "chunk_frames": [1],
            "gateway": {"call_s": 0, "message_s": 0, **gateway},
            "stages": {
                "speaker": {"makes": "frames", "slots": 1, "step_s": {1: 1.0}},
                "decoder": {"makes": "audio", "slots": 1, "step_s": {1: 0.5}},
            },
        }
    )


def answering_fleet(**gateway: Any) -> MeasuredPipeline:
    """Three stages, in the shape of a fleet on GPUs."""
    return measured_of(
        {
            "gateway": {"call_s": 0.003, "message_s": 0.0002, "max_calls": 500, **gateway},
            "stages": {
                "writer": {
                    "makes": "tokens", "slots": 32, "step_s": {1: 0.010, 32: 0.020},
                    "row_s": {256: 0.01}, "rows_per_step": 2048, "pace_s": 0.018, "gpus": 2,
                },
                "speaker": {
                    "makes": "frames", "slots": 32, "step_s": {1: 0.018, 32: 0.026},
                    "row_s": {256: 0.003},
                },
                "decoder": {
                    "makes": "audio", "slots": 32, "step_s": {1: 0.008, 16: 0.012},
                    "row_s": {32: 0.002}, "gpus": 0.5,
                },
            },
        }
    )  # fmt: skip


def load(rate: float, seconds: float = 20.0, **settings: Any) -> OfferedLoad:
    """Spoken replies with a heavy tail, of 6 s on average."""
    return OfferedLoad(
        **{
            "rate": rate,
            "seconds": seconds,
            "speech_s": Lengths("pareto", 6.0, 2.2, most=60.0),
            "prompt_rows": Lengths("lognormal", 200.0, 1.0),
            **settings,
        }
    )


def calls_at(*moments: float, frames: int = 1) -> list[OfferedCall]:
    """Calls at given moments, as short as can be."""
    return [OfferedCall(number, at, 1, 1, frames) for number, at in enumerate(moments)]
