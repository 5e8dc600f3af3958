"""Runs the complete pipeline as processes on one device, with weights that are generated there.

All sessions of a round start at the same time. For each session, the time to first audio and the
real-time factor are measured. The latter is the time from the question to the end of the answer
divided by the duration of its audio.
"""

from __future__ import annotations

import asyncio
import io
import time
import wave
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

import antiphon
from antiphon import SamplingRequest
from antiphon.deployment.schema import Deployment, StageConfig
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.launcher.process import ServiceProcess
from benchmarks.gpu.loaded import write_model
from benchmarks.gpu.report import HOLDS, LEFT_OUT, Figures, Row, again
from benchmarks.gpu.scale import EAGER, Scale, Way, scale_of, with_graphs

QUESTION = "day one"
RECORDING_S = 2.0
RECORDING_RATE_HZ = 16_000


class RandomStage(ServiceProcess):
    """A stage that uses `benchmarks.gpu.stage` to generate its weights."""

    @classmethod
    async def _run(
        cls,
        made: Callable[[], ServiceProcess],
        argv: Sequence[str],
        announce_fd: int,
        root: Path,
    ) -> ServiceProcess:
        program = "benchmarks.gpu.stage" if argv[0] == "antiphon_services" else argv[0]
        return await super()._run(made, (program, *argv[1:]), announce_fd, root)


class RandomLauncher(Launcher):
    """A launcher that starts stages with generated weights."""

    def _service(self, name: str) -> type[ServiceProcess]:
        return RandomStage


def pipeline_rows(
    device: torch.device,
    directory: Path,
    launcher: type[Launcher] = RandomLauncher,
    left_s: Callable[[], float] = lambda: 600.0,
) -> list[Row]:
    """Return a row for each setting. Its processes are only started once for all loads."""
    scale, model = scale_of(device), directory / "released"
    # The copies of a step only matter if nothing else takes longer.
    ways = [*with_graphs(device), EAGER]
    ways += [Way(True, async_to_host=False), Way(True, async_to_device=False)]
    if device.type == "cpu":
        ways = [EAGER]
    measure = partial(_measure, device, model, launcher, scale, left_s)
    least_s = scale.startup_s / 4 if device.type == "cuda" else 0.0
    rows = [Row(f"pipeline, {way}", partial(measure, way), least_s=least_s) for way in ways]
    setup = Row("a checkpoint without weights", partial(write_model, device, model), setup=True)
    return [setup, *rows, *(again(rows) if device.type == "cuda" else [])]


def _measure(
    device: torch.device,
    model: Path,
    launcher: type[Launcher],
    scale: Scale,
    left_s: Callable[[], float],
    way: Way,
) -> Figures:
    slots = max(scale.sessions) + 1
    common = StageConfig(
        device=str(device), engine="torch", slots=slots, context_limit=scale.context, **way.settings
    )
    stages = {
        "thinker": common,
        "talker": common,
        "code2wav": StageConfig(
            device=str(device), engine="torch", slots=slots, context_limit=0, **way.audio_settings
        ),
    }
    gateway = gateway_config(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0", max_calls=slots)
    deployment = Deployment(model=str(model), stages=stages, gateway=gateway)
    startup_s = min(scale.startup_s, max(left_s(), 1.0))

    async def run() -> Figures:
        async with (
            launcher(deployment, startup_timeout_s=startup_s) as running,
            antiphon.AsyncClient(running.grpc_address) as client,
        ):
            told: Figures = {"startup_s": round(running.startup_s, 1)}
            typed = [(f"{count} sessions", count, [QUESTION]) for count in scale.sessions]
            middle = sorted(scale.sessions)[len(scale.sessions) // 2]
            spoken = (f"{middle} sessions, spoken", middle, [_noise(), QUESTION])
            for name, count, question in [*typed, spoken]:
                if left_s() < 1.0:
                    told[name] = {LEFT_OUT: "the budget has been used"}
                    continue
                told[name] = await _bursts(client, count, question, scale, left_s)
            loads = [each for each in told.values() if isinstance(each, dict)]
            told[HOLDS] = all(each.get("failed", 0) == 0 for each in loads)
            return told

    return asyncio.run(run())


def _noise() -> bytes:
    """Return a recording as a file. Its hidden rows are sent from the thinker to the talker."""
    samples = np.random.default_rng(0).normal(0, 1000, int(RECORDING_S * RECORDING_RATE_HZ))
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(2)
        written.setframerate(RECORDING_RATE_HZ)
        written.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


@dataclass(frozen=True, slots=True)
class Heard:
    """Seconds from the question to the first audio and to the end, and seconds of audio."""

    first_audio_s: float
    total_s: float
    audio_s: float


async def _bursts(
    client: antiphon.AsyncClient,
    count: int,
    question: Sequence[str | bytes],
    scale: Scale,
    left_s: Callable[[], float],
) -> Figures:
    """Run bursts of new questions. The first burst is reported separately."""
    heard: list[Heard] = []
    errors: list[str] = []
    first_burst: list[Heard] = []
    for burst in range(scale.rounds + 1):
        if burst and heard and left_s() < 1.0:
            break
        # All prompts are different and have different lengths.
        asked = (
            _ask(client, [*question, " one" * (1 + each + burst * count)], scale)
            for each in range(count)
        )
        for each in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(each, BaseException):
                errors.append(f"{type(each).__name__}: {each}")
            else:
                (heard if burst else first_burst).append(each)
    told: Figures = {"answers": len(heard), "failed": len(errors)}
    if errors:
        told["errors"] = sorted(set(errors))[:3]
    if first_burst:
        told["first_burst_ttfa_ms"] = _percentiles(
            [1e3 * each.first_audio_s for each in first_burst]
        )
    if heard:
        first = [1e3 * each.first_audio_s for each in heard]
        factor = [each.total_s / each.audio_s for each in heard if each.audio_s]
        told["ttfa_ms"] = _percentiles(first)
        told["rtf"] = _percentiles(factor) if factor else "no audio"
        told["audio_s"] = round(sum(each.audio_s for each in heard) / len(heard), 2)
    return told


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    middle, late = np.percentile(values, [50, 95])
    return {"p50": round(float(middle), 3), "p95": round(float(late), 3)}


async def _ask(
    client: antiphon.AsyncClient, question: Sequence[str | bytes], scale: Scale
) -> Heard:
    """Request an answer up to its limits."""
    started, first_s, samples, rate = time.perf_counter(), 0.0, 0, 24_000
    generation = client.generate(
        [antiphon.Message.user(*question)],
        temperature=0.0,
        max_tokens=scale.reply_tokens,
        sampling={"talker": SamplingRequest(max_tokens=scale.reply_frames + 1)},
    )
    async for event in generation:
        if isinstance(event, antiphon.AudioDelta):
            first_s = first_s or time.perf_counter() - started
            samples += len(event.pcm16) // 2
            rate = generation.sample_rate_hz or rate
    if not samples:
        raise RuntimeError("an answer without audio")
    return Heard(first_s, time.perf_counter() - started, samples / rate)
