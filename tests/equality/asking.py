"""Asks the running services, and holds their answers against the reference."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt
import soundfile
import torch

import antiphon
from antiphon import ChunkPolicy, Delivery, FinishReason, SamplingRequest
from antiphon.values.conversation import AudioPart, Conversation, ImagePart, VideoPart
from antiphon_testkit.qwen3_omni.reference import ReferenceOutput
from tests.equality.truth import Truth

AUDIO_TOLERANCE = 1e-4
RATE = 16_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What came through the services."""

    text: str
    ids: list[int]
    codes: npt.NDArray[np.uint16]
    samples: npt.NDArray[np.float32]
    finished: antiphon.Finished
    audio_deltas: int


class AskedCase(Protocol):
    """What a case of any family's reference has."""

    @property
    def conversation(self) -> Conversation: ...
    @property
    def voice(self) -> str: ...
    @property
    def audio(self) -> bool: ...
    @property
    def thinker_max_tokens(self) -> int: ...
    @property
    def talker_max_tokens(self) -> int: ...


def messages(case: Conversation) -> list[antiphon.Message]:
    """The conversation as the SDK takes it; recordings as float WAV, so that no bit is lost."""
    built = []
    for message in case.messages:
        parts: list[str | bytes | antiphon.Image | antiphon.Video] = []
        for part in message.parts:
            if isinstance(part, AudioPart):
                file = io.BytesIO()
                soundfile.write(file, case.recordings[part.index], RATE, "FLOAT", format="WAV")
                parts.append(file.getvalue())
            elif isinstance(part, ImagePart):
                parts.append(antiphon.Image(case.images[part.index].tobytes()))
            elif isinstance(part, VideoPart):
                parts.append(antiphon.Video(case.videos[part.index].tobytes()))
            else:
                parts.append(part.text)
        built.append(antiphon.Message(message.role, tuple(parts)))
    return built


async def ask(
    client: antiphon.AsyncClient,
    case: AskedCase,
    *,
    groups: int,
    delivery: Delivery | None = None,
    policy: ChunkPolicy | None = None,
    seed: int | None = None,
    talker: SamplingRequest | None = None,
    on_audio: Callable[[], None] = lambda: None,
) -> Answer:
    """Send a case through the services: greedily, but for what `talker` says of its sampling.

    `on_audio` is called with each piece of audio.
    """
    greedy = SamplingRequest(temperature=0.0, max_tokens=case.talker_max_tokens)
    ids: list[int] = []
    text, codes, samples, deltas = "", b"", b"", 0
    finished = None
    generation = client.generate(
        messages(case.conversation),
        modalities=("text", "audio") if case.audio else ("text",),
        voice=case.voice,
        max_tokens=case.thinker_max_tokens,
        sampling={"talker": replace(greedy, **talker.given()) if talker else greedy},
        seed=seed,
        delivery=delivery,
        chunk_policy=policy,
        include_ids=True,
        timeout_s=120,
    )
    async for event in generation:
        match event:
            case antiphon.TextDelta():
                text += event.text
                ids += event.token_ids
            case antiphon.AudioDelta():
                codes += event.codes
                samples += event.float32
                deltas += 1
                on_audio()
            case antiphon.Finished():
                finished = event
    assert finished is not None
    return Answer(
        text,
        ids,
        np.frombuffer(codes, "<u2").reshape(-1, groups),
        np.frombuffer(samples, "<f4"),
        finished,
        deltas,
    )


def check(answer: Answer, expected: ReferenceOutput) -> None:
    """The law."""
    assert answer.ids == expected.text_ids.tolist()
    ends = {expected.text_finish, expected.audio_finish}
    assert answer.finished.finish_reason is (
        FinishReason.LENGTH if FinishReason.LENGTH in ends else FinishReason.STOP
    )
    np.testing.assert_array_equal(answer.codes, expected.codes)
    assert answer.samples.shape == expected.waveform.shape
    np.testing.assert_allclose(answer.samples, expected.waveform, rtol=0, atol=AUDIO_TOLERANCE)
    usage = answer.finished.usage
    assert usage.prompt_tokens == len(expected.prompt_ids)
    assert usage.completion_tokens == len(expected.text_ids)
    assert usage.completion_audio_frames == len(expected.codes)


def groups(truth: Truth) -> int:
    """Code groups of the checkpoint."""
    return int(truth.reference.model.config.talker_config.num_code_groups)


@torch.no_grad()
def decode(truth: Truth, codes: npt.NDArray[np.int32]) -> npt.NDArray[np.float32]:
    """The one-shot decode of codes [T, groups]."""
    if not len(codes):
        return np.empty(0, np.float32)
    batch = torch.from_numpy(codes.T.astype(np.int64).copy())[None]
    waveform: npt.NDArray[np.float32] = truth.reference.model.code2wav(batch).flatten().numpy()
    return waveform
