"""Listeners who know what they should hear: each answer is compared with the undisturbed one."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from antiphon.client.aio import AsyncClient, AsyncGeneration
from antiphon.client.events import AudioDelta, TextDelta
from antiphon.client.retrying import Retry
from antiphon.errors import AntiphonError
from antiphon.sampling import SamplingRequest
from tools.load.player import Piece, underrun

TOLERANCE = 1e-4
"""Of a sample: other chunks are decoded in other calls."""
PATIENT = Retry(attempts=100, pause_s=0.2, longest_pause_s=0.2)
"""Until a gateway that was killed is back."""
READ_AHEAD_BYTES = 4096
"""Less than a tenth of a second: a fault is to meet the answer where the listener is."""


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """What is asked; the same answer comes every time."""

    text: str
    temperature: float
    seed: int
    max_text: int
    max_frames: int

    def __str__(self) -> str:
        how = f"seed {self.seed}" if self.temperature else "greedy"
        return f"{self.text!r} ({how}, {self.max_frames} frames)"

    def sampling(self, stages: Sequence[str]) -> Mapping[str, SamplingRequest]:
        """That of the stages that make speech."""
        speaking = SamplingRequest(temperature=self.temperature, max_tokens=self.max_frames)
        return dict.fromkeys(stages, speaking)


@dataclass(slots=True)
class Heard:
    """An answer, or as much of it as came, and when its audio came."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    codes: bytes = b""
    samples: list[NDArray[np.float32]] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    error: AntiphonError | None = None
    asked_at: float = field(default_factory=time.monotonic)
    sessions: set[str] = field(default_factory=set)

    @property
    def resumed(self) -> bool:
        """Whether its gateway was lost and another has gone on with it."""
        return len(self.sessions) > 1

    @property
    def audio(self) -> NDArray[np.float32]:
        """All samples."""
        return np.concatenate(self.samples) if self.samples else np.empty(0, np.float32)

    @property
    def first_after_s(self) -> float:
        """Until its first audio came; 0 if none has."""
        return self.pieces[0][0] - self.asked_at if self.pieces else 0.0

    @property
    def underrun_s(self) -> float:
        """How much too late its audio came at worst; see `tools.load.player`."""
        return underrun(self.pieces)

    def difference(self, expected: Heard) -> str:
        """Where it differs from what was expected; empty if nowhere.

        Of an answer that ended with an error, what came must be how the expected one begins.
        """
        whole = self.error is None
        audio, other = self.audio, expected.audio
        if len(audio) > len(other) or (whole and len(audio) < len(other)):
            return f"{len(audio)} samples instead of {len(other)}"
        if len(audio) and (far := np.abs(audio - other[: len(audio)])).max() > TOLERANCE:
            return f"sample {int(far.argmax())} differs by {far.max():.2g}"
        if not _begins(expected.codes, self.codes, whole=whole):
            return "other codec frames"
        if not _begins(expected.text, self.text, whole=whole):
            return f"the text {self.text!r} instead of {expected.text!r}"
        if self.ids != expected.ids[: len(self.ids)]:
            return "other token ids"
        return ""


async def _play(seconds: float, hurry: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await hurry.wait()


def _begins(expected: str | bytes, found: str | bytes, *, whole: bool) -> bool:
    return found == (expected if whole else expected[: len(found)])


class AnswerListener:
    """Asks, and takes the audio as a player does, at so many times the `speed` of speech.

    Entered, it knows what the model is like.
    """

    def __init__(self, address: str, *, speed: float, retry: Retry = PATIENT) -> None:
        self._client = AsyncClient(address, retry=retry, read_ahead_bytes=READ_AHEAD_BYTES)
        self._speed = speed
        self._rate_hz = 0
        self._stages: Sequence[str] = ()

    async def __aenter__(self) -> Self:
        model = (await self._client.server_info()).models[0]
        self._rate_hz, self._stages = model.sample_rate_hz, model.sampling_stages
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.close()

    async def listen(
        self,
        question: KnownQuestion,
        on_piece: Callable[[float], None] | None = None,
        *,
        hurry: asyncio.Event | None = None,
    ) -> Heard:
        """The answer, or what came of it before an error.

        With `on_piece`, which is called with the seconds that each piece of audio plays for, it
        comes at the pace of a player; from `hurry` on as fast as it can.
        """
        heard = Heard()
        try:
            generation = self._ask(question)
            async for event in generation:
                heard.sessions.add(generation.session_id)
                if isinstance(event, TextDelta):
                    heard.text += event.text
                    heard.ids += event.token_ids
                elif isinstance(event, AudioDelta):
                    seconds = self._take(event, heard)
                    if on_piece is not None:
                        on_piece(seconds)
                        await _play(seconds, hurry or asyncio.Event())
        except AntiphonError as error:
            heard.error = error
        return heard

    def _ask(self, question: KnownQuestion) -> AsyncGeneration:
        return self._client.generate(
            question.text,
            temperature=question.temperature,
            max_tokens=question.max_text,
            seed=question.seed,
            sampling=question.sampling(self._stages),
            include_ids=True,
        )

    def _take(self, event: AudioDelta, heard: Heard) -> float:
        """For how long a piece plays."""
        samples = np.frombuffer(event.float32, "<f4")
        seconds = len(samples) / self._rate_hz / self._speed
        heard.samples.append(samples)
        heard.codes += event.codes
        heard.pieces.append((time.monotonic(), seconds))
        return seconds
