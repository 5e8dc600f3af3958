"""Sends requests to a checkpoint through the running services, as a client of antiphon does."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import soundfile
import torch
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

import antiphon
from antiphon import ChunkPolicy, SamplingRequest
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher
from models.recipe.acoustics import Floats
from models.recipe.codes import GROUPS
from models.recipe.recordings import HEARING_RATE
from models.recipe.requests import Request

T = TypeVar("T")

TEXT_LIMIT, SPEECH_LIMIT = 128, 1024
AT_ONCE = 4
TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer, with its text, its codes of shape [T, 8], and its samples at 24 kHz."""

    asked: str
    expected: str
    text: str
    codes: npt.NDArray[np.uint16]
    samples: Floats

    @property
    def right(self) -> bool:
        """Whether the text is as expected."""
        return self.text == self.expected


class Services:
    """A context manager that runs the three stages and the gateway with a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._stack = AsyncExitStack()
        self._client: antiphon.AsyncClient | None = None

    async def ask(self, request: Request, policy: ChunkPolicy | None = None) -> Spoken:
        """Request an answer with greedy decoding, including its codes."""
        assert self._client is not None
        text, codes, samples = "", b"", b""
        async for event in self._client.generate(
            request.asked,
            voice=request.voice,
            max_tokens=TEXT_LIMIT,
            temperature=0.0,
            sampling={"talker": SamplingRequest(temperature=0.0, max_tokens=SPEECH_LIMIT)},
            chunk_policy=policy,
            include_ids=True,
            timeout_s=TIMEOUT_S,
        ):
            if isinstance(event, antiphon.TextDelta):
                text += event.text
            elif isinstance(event, antiphon.AudioDelta):
                codes += event.codes
                samples += event.float32
        frames = np.frombuffer(codes, "<u2").reshape(-1, GROUPS)
        heard = np.frombuffer(samples, "<f4")
        return Spoken(request.asked, request.expected, text, frames, heard)

    async def ask_all(self, requests: Sequence[Request], title: str) -> list[Spoken]:
        """Request several answers concurrently, and return them in order."""
        return await self._all([partial(self.ask, each) for each in requests], title)

    async def write(
        self, messages: Sequence[antiphon.Message], functions: Sequence[antiphon.Function] = ()
    ) -> antiphon.Reply:
        """Request a text answer with greedy decoding."""
        assert self._client is not None
        return await self._client.generate(
            messages,
            functions=functions,
            modalities=("text",),
            max_tokens=TEXT_LIMIT,
            temperature=0.0,
            timeout_s=TIMEOUT_S,
        ).collect()

    async def hear_all(
        self, recordings: Sequence[Floats], title: str, *instruction: str
    ) -> list[str]:
        """Return the text answers to recordings at 16 kHz, in order. Requests are sent
        concurrently.

        Each recording is followed by the instruction, if there is one.
        """

        async def hear(samples: Floats) -> str:
            return (await self.write([antiphon.Message.user(wav(samples), *instruction)])).text

        return await self._all([partial(hear, each) for each in recordings], title)

    async def _all(self, asked: Sequence[Callable[[], Awaitable[T]]], title: str) -> list[T]:
        limit = asyncio.Semaphore(AT_ONCE)
        with tqdm(total=len(asked), desc=title, unit="question") as bar:

            async def one(ask: Callable[[], Awaitable[T]]) -> T:
                async with limit:
                    answer = await ask()
                bar.update()
                return answer

            return list(await asyncio.gather(*(one(ask) for ask in asked)))

    async def __aenter__(self) -> Self:
        running = await self._stack.enter_async_context(Launcher(local_deployment(self._directory)))
        client = antiphon.AsyncClient(running.grpc_address)
        self._client = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()


def wav(samples: Floats) -> bytes:
    """Return a WAV file with samples at 16 kHz."""
    file = io.BytesIO()
    soundfile.write(file, samples, HEARING_RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()


def load_code2wav(directory: Path) -> Any:
    """Return the code2wav module of the checkpoint from Hugging Face transformers, in float32."""
    from transformers import Qwen3OmniMoeConfig
    from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeCode2Wav

    from antiphon.runtime.checkpoint.submodule import load_submodule
    from antiphon.runtime.checkpoint.weights import Weights

    config: Any = Qwen3OmniMoeConfig.from_pretrained(directory)
    return load_submodule(
        Qwen3OmniMoeCode2Wav,
        config.code2wav_config,
        "code2wav.",
        Weights(directory),
        dtype=torch.float32,
        device="cpu",
    )
