"""What the tests of all families that read text aloud share: services, answers, comparisons."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pytest
import soundfile

import antiphon
from antiphon import ChunkPolicy, Delivery
from antiphon.deployment.schema import StageConfig
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher, Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.recording import RATE_HZ

SLOTS = 8
"""Of each stage, and the most sessions that share an engine."""
POLICIES: Mapping[str, dict[str, Any]] = {
    "whole": {"delivery": Delivery.WHOLE},
    "default": {},
    "one": {"policy": ChunkPolicy(first=1, ramp=(), steady=1)},
    "odd": {"policy": ChunkPolicy(first=2, ramp=(3,), steady=5)},
}

Case = TypeVar("Case")
Options = dict[str, str | float | bytes]
Speakers = Mapping[str, antiphon.AsyncClient]


@contextlib.asynccontextmanager
async def services_on(
    checkpoints: Mapping[str, Path], stages: Mapping[str, StageConfig]
) -> AsyncIterator[dict[str, Running]]:
    """All services on each checkpoint, by its name.

    Those of the last one start from scratch, as on Kubernetes, so that each family is shown to
    import all that it needs. The others are forked.
    """
    warm = [WarmLauncher] * (len(checkpoints) - 1)
    launchers = [
        launcher(local_deployment(path, **stages))
        for launcher, path in zip((*warm, Launcher), checkpoints.values(), strict=True)
    ]
    async with contextlib.AsyncExitStack() as stack:
        running = await asyncio.gather(*(stack.enter_async_context(each) for each in launchers))
        yield dict(zip(checkpoints, running, strict=True))


@contextlib.asynccontextmanager
async def clients_of(
    services: Mapping[str, Running],
) -> AsyncIterator[dict[str, antiphon.AsyncClient]]:
    """A client of each."""
    async with contextlib.AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(antiphon.AsyncClient(running.grpc_address))
            for name, running in services.items()
        }


@dataclass(frozen=True, slots=True)
class Speech:
    """What came through the services: codes uint16 [n], or [n, groups] if there are groups; of a
    model whose frames are floats these, float32."""

    codes: npt.NDArray[Any]
    samples: npt.NDArray[np.float32]
    finished: antiphon.Finished
    deltas: int

    def check(
        self,
        codes: npt.NDArray[np.uint16],
        audio: npt.NDArray[np.float32],
        *,
        step: int,
        samples_each: int,
        tolerance: float,
    ) -> None:
        """Codes are those that are recorded, and so is every `step`th sample; their number is
        exact, `samples_each` of a code."""
        np.testing.assert_array_equal(self.codes, codes)
        assert len(self.samples) == samples_each * len(codes)
        np.testing.assert_allclose(self.samples[::step], audio, rtol=0, atol=tolerance)
        assert self.finished.usage.completion_audio_frames == len(codes)


async def listen(
    generation: antiphon.AsyncGeneration,
    groups: int | None = None,
    at_first: Callable[[], Awaitable[None]] | None = None,
    *,
    after: int = 0,
) -> Speech:
    """Read an answer with its codes to the end; `at_first` is awaited with the first audio, or
    with the first one after so many frames of latents."""
    codes, latents, samples, deltas = b"", b"", b"", 0
    finished = None
    async for event in generation:
        match event:
            case antiphon.AudioDelta():
                if at_first is not None and len(latents) >= 4 * after * (groups or 1):
                    await at_first()
                    at_first = None
                assert event.first_sample == len(samples) // 4
                codes += event.codes
                latents += event.latents
                samples += event.float32
                deltas += 1
            case antiphon.Finished():
                finished = event
    assert finished is not None
    frames = np.frombuffer(latents, "<f4") if latents else np.frombuffer(codes, "<u2")
    if groups is not None:
        frames = frames.reshape(-1, groups)
    return Speech(frames, np.frombuffer(samples, "<f4"), finished, deltas)


def share_of(policy: str, cases: Iterable[Case]) -> list[Case]:
    """The cases that are delivered by one policy: each case by one, of each kind by all.

    All of them by all policies would take four times as long and find no more: what a case says
    does not depend on how it is delivered.
    """
    number = list(POLICIES).index(policy)
    turns = enumerate(cases)
    count = len(POLICIES)
    return [case for turn, case in turns if (turn + turn // count) % count == number]


async def in_company(asked: Iterable[Coroutine[Any, Any, Speech]]) -> list[Speech]:
    """The answers, `SLOTS` at a time."""
    room = asyncio.Semaphore(SLOTS)

    async def one(each: Coroutine[Any, Any, Speech]) -> Speech:
        async with room:
            return await each

    return await asyncio.gather(*map(one, asked))


async def check_company_changes_nothing(
    draw: Callable[[int], Awaitable[Speech]], tolerance: float
) -> None:
    """Sessions of `SLOTS` seeds say together what each says alone, and not the same."""
    alone = [await draw(seed) for seed in range(SLOTS)]
    together = await asyncio.gather(*map(draw, range(SLOTS)))
    for one, other in zip(alone, together, strict=True):
        assert one.codes.shape == other.codes.shape
        # Codes are whole numbers; floats are rounded otherwise in company.
        apart = tolerance if one.codes.dtype.kind == "f" else 0
        np.testing.assert_allclose(one.codes, other.codes, rtol=0, atol=apart)
        np.testing.assert_allclose(one.samples, other.samples, rtol=0, atol=tolerance)
    assert len({speech.codes.tobytes() for speech in alone}) > SLOTS // 2


async def check_refused(
    client: antiphon.AsyncClient,
    asked: Mapping[str, Any],
    recordings: Mapping[str, bytes],
    field: str,
) -> None:
    """A request for "Hello", but for what is `asked`, is refused by this field.

    Options that are names of `recordings` have these.
    """
    wanted = {"messages": "Hello", **asked}
    options = {
        name: recordings.get(value, value) if isinstance(value, str) else value
        for name, value in wanted.pop("options", {}).items()
    }
    with pytest.raises(antiphon.AntiphonError) as refused:
        await client.generate(wanted.pop("messages"), options=options, **wanted).collect()
    assert refused.value.code.value in ("invalid_argument", "not_implemented")
    assert refused.value.field == field, refused.value


def wav(samples: npt.NDArray[np.int16], rate_hz: int = RATE_HZ) -> bytes:
    """A recording as a WAV file."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, "PCM_16", format="WAV")
    return file.getvalue()


async def check_load(
    running: Running,
    service: str,
    options: Iterable[str],
    folder: Path,
    *,
    http: bool = False,
    pace: Sequence[str] = ("--sessions", "2"),
) -> None:
    """A load test of one service, with its result in `folder`, has no failed request.

    `http` loads the gateway by HTTP, and not by gRPC.
    """
    result = folder / "result.json"
    target = running.http_url if http else running.processes[service].address
    if service == "gateway" and not http:
        target = running.grpc_address
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "antiphon_tools.load", service, "--target", target,
        "--seconds", "1", "--warm-up", "0", "--frames", "8", *pace,
        "--json", str(result), "--slo", "duration=60",
        *(word for option in options for word in ("--option", option)),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()
    requests = json.loads(result.read_text())["requests"]
    assert requests["succeeded"] == requests["due"] > 0
