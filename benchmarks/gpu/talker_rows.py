"""What a step of the talker takes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.engines.speakers import Speakers
from benchmarks.engines.stopwatch import stopwatch_of
from benchmarks.gpu.loads import (
    WAYS,
    Way,
    bucketing_of,
    scale_of,
    summary,
    to_host_of,
)
from benchmarks.gpu.report import Figures, Row, mirrored
from benchmarks.gpu.weights import (
    random_talker,
    sizes_of,
    special_ids,
    whole_config,
)
from services.lm.readback import Readback
from services.qwen3_omni.talker.engine import TalkerEngine
from services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from services.qwen3_omni.talker.model import Talker


def talker_rows(device: torch.device, traces: Path | None) -> list[Row]:
    """Frames of sessions with prompts of mixed lengths, alone and while a prompt comes."""
    scale = scale_of(device)
    rows = mirrored(
        [
            Row(f"talker, {way}, {count} sessions", partial(_talker, device, way, count))
            for way in WAYS
            for count in scale.sessions
        ]
    )
    rows.append(Row("talker, eager, a prompt comes", partial(_talker_disturbed, device)))
    rows.append(Row("talker, a trace", partial(_talker_trace, device, traces)))
    return rows


def _speakers(device: torch.device, way: Way, sessions: int) -> Speakers:
    sizes, scale = sizes_of(device), scale_of(device)
    config = whole_config(sizes)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    special = special_ids(config)
    limit = max(scale.context, scale.arriving + scale.frames) + scale.frames
    with torch.inference_mode():
        words = torch.randn(special.tts_eos + 512, sizes.shape.hidden, dtype=dtype)
        talker = Talker(
            random_talker(config, dtype, device),
            words,
            special,
            code_entries=sizes.shape.talker_vocabulary,
            context_limit=limit,
            slots=max(sessions + 1, 4),
            readback=Readback(to_host_of(device)),
            bucketing=bucketing_of(way, device),
        )
    engine = TalkerEngine(talker, limit, launch_ahead=way.launch_ahead)
    return Speakers(engine, special, scale.frames, stopwatch_of(device))


def _talker(device: torch.device, way: Way, sessions: int) -> Figures:
    speakers = _speakers(device, way, sessions)
    rows = scale_of(device).prompt_rows
    prompts = [rows[index % len(rows)] for index in range(sessions)]
    speakers.steps_ms(DEFAULT_SAMPLING, prompts)
    return summary(speakers.steps_ms(DEFAULT_SAMPLING, prompts))


def _talker_disturbed(device: torch.device) -> Figures:
    scale = scale_of(device)
    sessions = min(16, scale.sessions[-1])
    speakers = _speakers(device, Way(False), sessions)
    prompts = [scale.prompt_rows[0]] * sessions
    speakers.disturbed_ms(DEFAULT_SAMPLING, prompts, scale.arriving)
    told = summary(speakers.disturbed_ms(DEFAULT_SAMPLING, prompts, scale.arriving))
    return {"sessions": sessions, "arriving_rows": scale.arriving, **told}


def _talker_trace(device: torch.device, traces: Path | None) -> Figures:
    """One step under the profiler: how many operations and kernels, and a file to look at."""
    from torch.profiler import ProfilerActivity, profile

    speakers = _speakers(device, Way(False), 1)
    speakers.steps_ms(DEFAULT_SAMPLING, [scale_of(device).prompt_rows[0]])
    key = speakers.join(DEFAULT_SAMPLING, scale_of(device).prompt_rows[0], 0)
    while not speakers.step():
        pass
    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as profiler:
        speakers.step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    speakers.leave([key])
    told: Figures = {}
    if traces is not None:
        path = traces / "talker-step.json"
        profiler.export_chrome_trace(str(path))
        told["trace"] = str(path)
    events: Any = profiler.events()
    launched = [
        each for each in events if "LaunchKernel" in each.name or "GraphLaunch" in each.name
    ]
    waited = [each for each in events if "Synchronize" in each.name]
    copied = [each for each in events if each.name.startswith("cudaMemcpy")]
    return told | {
        "operations": sum(each.name.startswith("aten::") for each in events),
        "launches": len(launched),
        "waits": len(waited),
        "copies": len(copied),
        "longest": profiler.key_averages().table(row_limit=12)[:4000],
    }
