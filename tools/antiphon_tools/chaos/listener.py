"""Listeners that compare each answer with one that was recorded without faults."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from antiphon.client.aio import AsyncClient, AsyncGeneration
from antiphon.client.events import AudioDelta, ModelInfo, TextDelta
from antiphon.client.retrying import Retry
from antiphon.errors import AntiphonError
from antiphon.values.sampling import SamplingRequest
from antiphon_tools.chaos.conversing import KnownTalk, hear_turns
from antiphon_tools.chaos.heard import Heard

ASK_AGAIN_S = 0.2
DEFAULT = Retry()
"""The default retry policy of the SDK."""
PCM16_FULL_SCALE = 32768
SERVED_WITHIN_S = 120.0
READ_AHEAD_BYTES = 4096
"""This is less than a tenth of a second of audio, so that a fault affects the part of the answer
that the listener is receiving.
"""


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """A question that always has the same answer."""

    text: str
    temperature: float
    seed: int
    max_text: int
    max_frames: int

    def __str__(self) -> str:
        how = f"seed {self.seed}" if self.temperature else "greedy"
        return f"{self.text!r} ({how}, {self.max_frames} frames)"

    def sampling(self, stages: Sequence[str]) -> Mapping[str, SamplingRequest]:
        """Return the sampling parameters for the stages that generate speech."""
        speaking = SamplingRequest(temperature=self.temperature, max_tokens=self.max_frames)
        return dict.fromkeys(stages, speaking)


class AnswerListener:
    """Requests answers and receives the audio at `speed` times the speed of playback.

    Entering the context waits until the gateway's stages are available and reads the properties of
    the model.
    """

    def __init__(self, address: str, *, speed: float, retry: Retry = DEFAULT) -> None:
        self._client = AsyncClient(address, retry=retry, read_ahead_bytes=READ_AHEAD_BYTES)
        self._speed = speed
        self._rate_hz = 0
        self._stages: Sequence[str] = ()

    async def __aenter__(self) -> Self:
        async with asyncio.timeout(SERVED_WITHIN_S):
            model = await self._model()
        self._rate_hz, self._stages = model.sample_rate_hz, model.sampling_stages
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def _model(self) -> ModelInfo:
        """Return the model that is served. This requires polling."""
        while True:
            if models := (await self._client.server_info()).models:
                return models[0]
            await asyncio.sleep(ASK_AGAIN_S)

    async def listen(
        self,
        question: KnownQuestion,
        on_piece: Callable[[float], None] | None = None,
        *,
        hurry: asyncio.Event | None = None,
    ) -> Heard:
        """Return the answer, or the part that was received before an error.

        If `on_piece` is set, it is called with the playback duration of each piece of audio, and
        the audio is received at playback speed. After `hurry` is set, the rest is received as fast
        as possible.
        """
        heard, session_id = Heard(), ""
        try:
            generation = self._ask(question)
            async for event in generation:
                # Another gateway has resumed the answer.
                heard.resumed |= session_id not in ("", generation.session_id)
                session_id = generation.session_id
                if isinstance(event, TextDelta):
                    heard.text += event.text
                    heard.ids += event.token_ids
                elif isinstance(event, AudioDelta):
                    heard.codes += event.codes
                    samples = np.frombuffer(event.float32, "<f4")
                    await self._play(on_piece, hurry, samples, heard)
        except AntiphonError as error:
            heard.error = error
        return heard

    async def converse(
        self, talk: KnownTalk, on_piece: Callable[[float], None] | None = None
    ) -> list[Heard]:
        """Return the answers of a conversation, as described in `listen`."""

        async def play(pcm16: bytes, heard: Heard) -> None:
            samples = np.frombuffer(pcm16, "<i2").astype(np.float32) / np.float32(PCM16_FULL_SCALE)
            await self._play(on_piece, None, samples, heard)

        try:
            async with self._client.converse(sampling=talk.sampling(self._stages)) as call:
                return await hear_turns(call, talk, play)
        except AntiphonError as error:
            return [Heard(error=error)]

    def _ask(self, question: KnownQuestion) -> AsyncGeneration:
        return self._client.generate(
            question.text,
            temperature=question.temperature,
            max_tokens=question.max_text,
            seed=question.seed,
            sampling=question.sampling(self._stages),
            include_ids=True,
        )

    async def _play(
        self,
        on_piece: Callable[[float], None] | None,
        hurry: asyncio.Event | None,
        samples: NDArray[np.float32],
        heard: Heard,
    ) -> None:
        """Receive a piece and wait for its playback if `on_piece` is set."""
        seconds = len(samples) / self._rate_hz / self._speed
        heard.samples.append(samples)
        heard.pieces.append((time.monotonic(), seconds))
        if on_piece is None:
            return
        on_piece(seconds)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await (hurry or asyncio.Event()).wait()
