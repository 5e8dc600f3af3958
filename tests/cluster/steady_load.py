"""Clients of a fleet that ask again as soon as they are answered, as published clients do.

Half of them are OpenAI's, which keep their connections to the HTTP endpoint and ask twice more
after an error that says so; the others are the SDK's, with the one connection that gRPC has.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import openai

import antiphon

TEXT = "Ring out, wild bells!"


class SteadyLoad:
    """What became of the requests: audio by how often it was heard, failures, first audio."""

    def __init__(self) -> None:
        self.heard: Counter[bytes] = Counter()
        self.failures: list[str] = []
        self.first_audio_s: list[float] = []
        self._answered = asyncio.Event()

    @property
    def answers(self) -> int:
        """How many there have been."""
        return self.heard.total()

    async def wait_answers(self, more: int) -> None:
        """Return when so many more have come."""
        wanted = self.answers + more
        while self.answers < wanted:
            await self._answered.wait()

    def answered(self, audio: bytes) -> None:
        """One is whole."""
        self.heard[audio] += 1
        self._answered.set()
        self._answered = asyncio.Event()

    def failed(self, error: Exception) -> None:
        """One is not."""
        self.failures.append(f"{type(error).__name__}: {error}")


@asynccontextmanager
async def steady_load(
    http_address: str, grpc_address: str, clients: int, model: str, *, tries: int = 3
) -> AsyncIterator[SteadyLoad]:
    """So many clients of each kind, until the block ends; then each is still answered.

    Each request is made so often, as long as the errors say that it may; 3 is usual.
    """
    load, over = SteadyLoad(), asyncio.Event()
    http = openai.AsyncOpenAI(
        base_url=f"http://{http_address}/v1", api_key="none", timeout=120, max_retries=tries - 1
    )
    retry = antiphon.Retry(attempts=tries)
    async with http, antiphon.AsyncClient(grpc_address, retry=retry) as sdk:

        async def ask_http() -> None:
            while not over.is_set():
                try:
                    load.answered(await _chat(http, model, load))
                except openai.OpenAIError as error:
                    load.failed(error)

        async def ask_grpc() -> None:
            while not over.is_set():
                try:
                    load.answered(await _generate(sdk, load))
                except antiphon.AntiphonError as error:
                    load.failed(error)

        async with asyncio.TaskGroup() as group:
            for _ in range(clients):
                group.create_task(ask_http())
                group.create_task(ask_grpc())
            try:
                yield load
            finally:
                over.set()


async def _chat(http: openai.AsyncOpenAI, model: str, load: SteadyLoad) -> bytes:
    began, audio = time.monotonic(), b""
    stream = await http.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": TEXT}],
        modalities=["audio"],
        audio=cast(Any, {"format": "pcm16"}),
        stream=True,
    )
    async for piece in stream:
        for choice in piece.choices:
            heard = choice.delta.audio
            if heard is not None and (data := heard.data):
                if not audio:
                    load.first_audio_s.append(time.monotonic() - began)
                audio += base64.b64decode(data)
    return audio


async def _generate(sdk: antiphon.AsyncClient, load: SteadyLoad) -> bytes:
    began, audio = time.monotonic(), b""
    async for event in sdk.generate(TEXT):
        if isinstance(event, antiphon.AudioDelta):
            if not audio:
                load.first_audio_s.append(time.monotonic() - began)
            audio += event.pcm16
    return audio
