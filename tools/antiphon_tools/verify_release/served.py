"""Measures the answers that a complete deployment gives: their time to first audio, real-time
factor and transcript.
"""

from __future__ import annotations

import io
import statistics
import time
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from antiphon.client.aio import AsyncClient
from antiphon.client.events import AudioDelta, TextDelta
from antiphon.client.request import GenerateOptions, Message
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.values.sampling import SamplingRequest
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.verify_release.families import Family
from antiphon_tools.verify_release.questions import TRANSCRIBE, word_error_rate
from antiphon_tools.verify_release.truth import Show

STARTUP_TIMEOUT_S = 1800.0
"""This allows a checkpoint of 70 GB to be loaded from a slow disk."""
SAMPLE_BYTES = 2


@dataclass(frozen=True, slots=True)
class AnswerLimits:
    """The maximum numbers of text tokens and codec frames in an answer.

    For a model that only speaks, `tokens` is 0 and the options `speaking` are used.
    """

    tokens: int
    frames: int
    speaking: Mapping[str, str | float] = field(default_factory=dict)

    @property
    def options(self) -> GenerateOptions:
        """The options of `generate` for greedy decoding.

        The limits are one higher than the number of frames, because the last draw has no frame.
        """
        if not self.tokens:
            most = self.frames + 1
            return {"temperature": 0.0, "max_tokens": most, "options": self.speaking}
        talker = SamplingRequest(max_tokens=self.frames + 1)
        return {"temperature": 0.0, "max_tokens": self.tokens, "sampling": {"talker": talker}}


@dataclass(frozen=True, slots=True)
class ServedAnswer:
    """A served answer: its text, its audio, and its times in seconds."""

    text: str
    wav: bytes
    first_audio_s: float
    total_s: float
    audio_s: float


def deployment_of(
    model: Path, family: Family, devices: Mapping[str, str], slots: int, context: int
) -> Deployment:
    """Return a deployment with all stages and a gateway, which use free ports of this host."""
    stages = {
        role: StageConfig(
            device=devices[role], slots=slots, context_limit=family.context_of(role, context)
        )
        for role in family.pipeline.roles
    }
    gateway = GatewayConfig(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0")
    return Deployment(
        model=str(model), pipeline=family.pipeline.name, stages=stages, gateway=gateway
    )


async def speak_all(
    deployment: Deployment,
    questions: Sequence[str],
    limits: AnswerLimits,
    *,
    family: Family,
    tokens: int,
    hears: bool,
    show: Show,
) -> tuple[list[ServedAnswer], list[str]]:
    """Ask questions one after another, after a warm-up question.

    If `hears` is true, the deployment also transcribes its answers, with up to `tokens` tokens
    each.
    """
    show("starting the deployment")
    async with (
        Launcher(deployment, startup_timeout_s=STARTUP_TIMEOUT_S) as running,
        AsyncClient(running.grpc_address) as client,
    ):
        show(f"the deployment is ready after {running.startup_s:.0f} s")
        answers = []
        for number, question in enumerate([questions[0], *questions]):
            show(f"spoken answer {number} of {len(questions)}")
            answers.append(await _speak(client, question, limits))
        recordings = [each.wav for each in answers[1:]] if hears else []
        return answers[1:], await _transcribe(client, family, recordings, tokens, show)


async def transcribe_all(
    deployment: Deployment,
    family: Family,
    recordings: Sequence[bytes],
    *,
    tokens: int,
    show: Show,
) -> list[str]:
    """Return another deployment's transcript of each recording."""
    async with (
        Launcher(deployment, startup_timeout_s=STARTUP_TIMEOUT_S) as running,
        AsyncClient(running.grpc_address) as client,
    ):
        return await _transcribe(client, family, recordings, tokens, show)


def speed_figures(answers: Sequence[ServedAnswer]) -> dict[str, Any]:
    """Return the speed with a single session after a warm-up."""
    first_ms = sorted(1e3 * each.first_audio_s for each in answers)
    factors = [each.total_s / each.audio_s for each in answers]
    return {
        "answers": len(answers),
        "first_audio_ms": {
            "median": round(statistics.median(first_ms), 1),
            "most": round(first_ms[-1], 1),
        },
        "real_time_factor": round(statistics.median(factors), 3),
        "audio_s": round(sum(each.audio_s for each in answers), 2),
    }


def hearing_figures(
    answers: Sequence[ServedAnswer], heard: Sequence[str], transcriber: str
) -> dict[str, Any]:
    """Compare the transcripts with the text of the answers."""
    rows = [
        {
            "said": each.text,
            "heard": text,
            "word_error_rate": round(word_error_rate(each.text, text), 4),
        }
        for each, text in zip(answers, heard, strict=True)
        if any(letter.isalnum() for letter in each.text)
    ]
    rates = [each["word_error_rate"] for each in rows]
    mean = round(statistics.fmean(rates), 4) if rates else "not measured: no words were spoken"  # type: ignore[arg-type]
    return {"transcriber": transcriber, "mean_word_error_rate": mean, "answers": rows}


async def _transcribe(
    client: AsyncClient, family: Family, recordings: Sequence[bytes], tokens: int, show: Show
) -> list[str]:
    heard = []
    asked_for = () if family.transcribing else (TRANSCRIBE,)
    for number, recording in enumerate(recordings, 1):
        show(f"transcript {number} of {len(recordings)}")
        reply = await client.generate(
            [Message.user(recording, *asked_for)],
            modalities=("text",),
            temperature=0.0,
            max_tokens=tokens,
            options=family.transcribing,
        ).collect()
        heard.append(reply.text)
    return heard


async def _speak(client: AsyncClient, question: str, limits: AnswerLimits) -> ServedAnswer:
    started, first_s, pcm, text = time.perf_counter(), 0.0, bytearray(), ""
    generation = client.generate(question, **limits.options)
    async for event in generation:
        if isinstance(event, AudioDelta):
            first_s = first_s or time.perf_counter() - started
            pcm += event.pcm16
        elif isinstance(event, TextDelta):
            text += event.text
    rate = generation.sample_rate_hz
    if not pcm or not rate:
        raise RuntimeError(f"the answer to {question!r} has no audio: {text!r}")
    file = io.BytesIO()
    with wave.open(file, "wb") as written:
        written.setnchannels(1)
        written.setsampwidth(SAMPLE_BYTES)
        written.setframerate(rate)
        written.writeframes(bytes(pcm))
    audio_s = len(pcm) / SAMPLE_BYTES / rate
    total_s = time.perf_counter() - started
    return ServedAnswer(text or question, file.getvalue(), first_s, total_s, audio_s)
