"""The whole pipeline as processes on one device, with weights that are made there.

Every session asks at once, and each round is one burst. What a session tells is the time to its
first audio, and its real-time factor: its time from the question to the end over the seconds of
its audio.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

import antiphon
from antiphon import SamplingRequest
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.testing.qwen3_omni.tiny_tokenizer import PREPROCESSOR, TOKENIZER
from benchmarks.gpu.report import HOLDS, Figures, Row, mirrored
from benchmarks.gpu.weights import TINY, Sizes, config_of, sizes_of
from tools.launcher.launcher import Launcher
from tools.launcher.process import ServiceProcess

QUESTION = "day one"


@dataclass(frozen=True, slots=True)
class Load:
    """What is asked."""

    sessions: Sequence[int]
    tokens: int
    frames: int
    rounds: int
    context: int
    startup_s: float


FULL = Load((1, 8, 64), tokens=60, frames=100, rounds=3, context=2048, startup_s=240.0)
SMOKE = Load((1, 2), tokens=6, frames=6, rounds=1, context=512, startup_s=120.0)


class RandomStage(ServiceProcess):
    """A stage with weights of `benchmarks.gpu.stage` in the place of `services`."""

    @classmethod
    async def _run(
        cls,
        made: Callable[[], ServiceProcess],
        argv: Sequence[str],
        announce_fd: int,
        root: Path,
    ) -> ServiceProcess:
        program = "benchmarks.gpu.stage" if argv[0] == "services" else argv[0]
        return await super()._run(made, (program, *argv[1:]), announce_fd, root)


class RandomLauncher(Launcher):
    """Starts such stages."""

    def _service(self, name: str) -> type[ServiceProcess]:
        return RandomStage


def pipeline_rows(
    device: torch.device,
    directory: Path,
    launcher: type[Launcher] = RandomLauncher,
    left_s: Callable[[], float] = lambda: 600.0,
) -> list[Row]:
    """One row for each way of running: its processes are started once, for all loads."""
    load = FULL if device.type == "cuda" else SMOKE
    model = directory / "released"
    measure = partial(_measure, device, model, launcher, load, left_s)
    ways = {"eager": {}, "graphs": {"graphs": True}}
    ways["graphs, launched ahead"] = {"graphs": True, "launch_ahead": True}
    if device.type == "cpu":
        ways = {"eager": {}}
    rows = [Row("pipeline, a checkpoint without weights", partial(write_model, device, model))]
    rows += mirrored(
        [
            Row(f"pipeline, {name}", partial(measure, settings), least_s=load.startup_s / 4)
            for name, settings in ways.items()
        ]
    )
    return rows


def write_model(device: torch.device, directory: Path) -> Figures:
    """All of a checkpoint's directory but weights: the words alone are there."""
    from safetensors.torch import save_file
    from transformers import GenerationConfig

    # Every word that may be drawn must have a text.
    sizes = Sizes(sizes_of(device).shape if device.type == "cuda" else TINY)
    directory.mkdir()
    vocabulary = TOKENIZER.write(directory)
    PREPROCESSOR.write(directory)
    config = config_of(sizes, vocabulary)
    config.save_pretrained(directory)
    ids = vocabulary.ids
    GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=ids["<|im_end|>"], pad_token_id=ids["<|endoftext|>"]
    ).save_pretrained(directory)
    rows = config.thinker_config.text_config.vocab_size
    words = torch.randn(rows, sizes.shape.hidden, generator=torch.Generator().manual_seed(0))
    path = directory / "model.safetensors"
    save_file({"thinker.model.embed_tokens.weight": words.bfloat16()}, path, {"format": "pt"})
    return {"words": rows, "bytes": path.stat().st_size}


def _measure(
    device: torch.device,
    model: Path,
    launcher: type[Launcher],
    load: Load,
    left_s: Callable[[], float],
    settings: dict[str, Any],
) -> Figures:
    dtype = "bfloat16" if device.type == "cuda" else "float32"
    slots = max(load.sessions) + 1
    common = StageConfig(
        device=str(device), engine="torch", slots=slots, context_limit=load.context
    )
    stages = {
        "thinker": replace(common, dtype=dtype, **settings),
        "talker": replace(common, dtype=dtype, **settings),
        "code2wav": replace(
            common, dtype="float32", graphs=bool(settings.get("graphs")), context_limit=0
        ),
    }
    gateway = GatewayConfig(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0", max_calls=slots)
    deployment = Deployment(model=str(model), stages=stages, gateway=gateway)
    startup_s = min(load.startup_s, max(left_s(), 1.0))

    async def run() -> Figures:
        async with (
            launcher(deployment, startup_timeout_s=startup_s) as running,
            antiphon.AsyncClient(running.grpc_address) as client,
        ):
            told: Figures = {"startup_s": round(running.startup_s, 1)}
            for count in load.sessions:
                if left_s() < 1.0:
                    told[f"{count} sessions"] = "skipped: no time is left"
                    continue
                told[f"{count} sessions"] = await _bursts(client, count, load, left_s)
            loads = [each for each in told.values() if isinstance(each, dict)]
            told[HOLDS] = all(each["failed"] == 0 for each in loads)
            return told

    return asyncio.run(run())


@dataclass(frozen=True, slots=True)
class Heard:
    """Seconds from the question to the first audio, to the end, and of audio."""

    first_audio_s: float
    total_s: float
    audio_s: float


async def _bursts(
    client: antiphon.AsyncClient, count: int, load: Load, left_s: Callable[[], float]
) -> Figures:
    """The first burst warms up and is left out."""
    heard: list[Heard] = []
    errors: list[str] = []
    for burst in range(load.rounds + 1):
        if burst and heard and left_s() < 1.0:
            break
        asked = (_ask(client, load) for _ in range(count))
        for each in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(each, BaseException):
                errors.append(f"{type(each).__name__}: {each}")
            elif burst:
                heard.append(each)
    told: Figures = {"answers": len(heard), "failed": len(errors)}
    if errors:
        told["errors"] = sorted(set(errors))[:3]
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


async def _ask(client: antiphon.AsyncClient, load: Load) -> Heard:
    """One answer to its limits."""
    started, first_s, samples, rate = time.perf_counter(), 0.0, 0, 24_000
    generation = client.generate(
        QUESTION,
        temperature=0.0,
        max_tokens=load.tokens,
        sampling={"talker": SamplingRequest(max_tokens=load.frames + 1)},
    )
    async for event in generation:
        if isinstance(event, antiphon.AudioDelta):
            first_s = first_s or time.perf_counter() - started
            samples += len(event.pcm16) // 2
            rate = generation.sample_rate_hz or rate
    if not samples:
        raise RuntimeError("an answer without audio")
    return Heard(first_s, time.perf_counter() - started, samples / rate)
