"""Asks as the vendor's code was asked, and compares."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import soundfile

import antiphon
from antiphon import ChunkPolicy, Delivery
from antiphon.pipelines.mimo_audio import CODES, INPUT, TEXT
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    TextPart,
    to_tensors,
)
from antiphon.values.options import OptionValue
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason
from antiphon_testkit.drive_engine import SegmentOutput
from tests.equality.mimo_audio.mimo_cases import (
    ASR,
    CHANNELS,
    DIALOGUE,
    GROUP,
    RATE_HZ,
    TTS,
    Case,
    clips,
)
from tests.equality.mimo_audio.mimo_lab import GREEDY, Recorded

GREEDY_CODES = {"code_temperature": 0.0}


def speaks(case: Case) -> bool:
    """Whether the vendor's task ends with the end of speech."""
    return case.task in (TTS, DIALOGUE)


def conversation_of(case: Case) -> Conversation:
    """The messages of a case."""
    heard = clips()
    recordings: list[npt.NDArray[np.float32]] = []

    def played(name: str) -> AudioPart:
        recordings.append(heard[name])
        return AudioPart(len(recordings) - 1)

    messages = []
    if case.system is not None:
        messages.append(ConversationMessage("system", (TextPart(case.system),)))
    for said, sound in case.earlier:
        asked = played(sound) if sound else TextPart(said)
        messages.append(ConversationMessage("user", (asked,)))
        if case.task == DIALOGUE:
            answer: tuple[Any, ...] = (TextPart(said), played(sound))
        else:
            answer = (TextPart(said if sound else said.upper()),)
        messages.append(ConversationMessage("assistant", answer))
    parts: list[Any] = [played(case.clip)] if case.clip else []
    if case.text:
        parts.append(TextPart(case.text))
    messages.append(ConversationMessage("user", tuple(parts)))
    return Conversation(tuple(messages), tuple(recordings))


def options_of(case: Case) -> dict[str, OptionValue]:
    """The options of a case, which is greedy."""
    options: dict[str, OptionValue] = dict(GREEDY_CODES)
    if case.task in (TTS, ASR):
        options["task"] = "speech" if case.task == TTS else "transcription"
    if case.voice:
        options["reference_audio"] = clips()[case.voice]
    if case.instruct is not None:
        options["instruction"] = case.instruct
    if case.described:
        options["described"] = "yes"
    if case.thinking:
        options["thinking"] = "yes"
    return options


def asked(case: Case) -> tuple[SegmentSettings, list[InputChunk]]:
    """A case as the talker gets it."""
    sampling = SamplingRequest(temperature=0.0, max_tokens=case.most)
    outputs = frozenset({TEXT, CODES} if speaks(case) else {TEXT})
    settings = SegmentSettings(
        "",
        replace(GREEDY, max_tokens=case.most),
        outputs,
        options_of(case),
        asked=sampling,
    )
    chunk = InputChunk(INPUT, 0, to_tensors(conversation_of(case)), True, FinishReason.STOP)
    return settings, [chunk]


def assert_as_recorded(
    output: SegmentOutput, case: Case, stem: str, recorded: Recorded, group_id: int
) -> None:
    """The ids, and the codes of all positions but the last, are those of the vendor's code."""
    assert output.failed is None, (stem, output.failed)
    wanted = recorded.arrays[f"{stem}/text"]
    assert output.tensors(TEXT)["ids"].tolist() == wanted.tolist(), stem
    assert output.completed is not None
    assert output.completed.input_positions == recorded.rows[stem]["prompt"], stem
    if speaks(case):
        codes = output.tensors(CODES).get(CODES, np.zeros((0, CHANNELS), np.uint16))
        spoken = recorded.arrays[f"{stem}/codes"].reshape(len(wanted), GROUP, CHANNELS)
        spoken = spoken[:-1][wanted[:-1] == group_id].reshape(-1, CHANNELS)
        np.testing.assert_array_equal(codes, spoken, stem)


@dataclass(frozen=True, slots=True)
class Answer:
    """What came through the services."""

    text: str
    ids: list[int]
    codes: npt.NDArray[np.uint16]
    samples: npt.NDArray[np.float32]
    finished: antiphon.Finished
    deltas: int


def wav(samples: npt.NDArray[np.float32]) -> bytes:
    """A recording as a WAV file that loses no bit."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE_HZ, "FLOAT", format="WAV")
    return file.getvalue()


def messages_of(case: Case) -> list[antiphon.Message]:
    """The messages of a case, as the SDK takes them."""
    said = conversation_of(case)
    return [
        antiphon.Message(
            message.role,
            tuple(
                wav(said.recordings[part.index]) if isinstance(part, AudioPart) else part.text
                for part in message.parts
                if isinstance(part, AudioPart | TextPart)
            ),
        )
        for message in said.messages
    ]


def sent_options(options: Mapping[str, OptionValue]) -> dict[str, str | float | bytes]:
    """Options as the SDK takes them."""
    return {
        name: wav(value) if isinstance(value, np.ndarray) else value
        for name, value in options.items()
    }


async def ask(
    client: antiphon.AsyncClient,
    case: Case,
    *,
    delivery: Delivery | None = None,
    policy: ChunkPolicy | None = None,
    **changed: Any,
) -> Answer:
    """Send a case through the services; `changed` takes the place of what it asks for."""
    wanted: dict[str, Any] = {
        "modalities": ("text", "audio") if speaks(case) else ("text",),
        "temperature": 0.0,
        "max_tokens": case.most,
        "options": sent_options(options_of(case)),
        **changed,
    }
    generation = client.generate(
        messages_of(case),
        delivery=delivery,
        chunk_policy=policy,
        include_ids=True,
        timeout_s=240,
        **wanted,
    )
    return await listen(generation)


async def listen(generation: antiphon.AsyncGeneration) -> Answer:
    """Read an answer with its codes to the end."""
    text, ids, codes, samples, deltas = "", list[int](), b"", b"", 0
    finished = None
    async for event in generation:
        match event:
            case antiphon.TextDelta():
                text += event.text
                ids += event.token_ids
            case antiphon.AudioDelta():
                assert event.first_sample == len(samples) // 4
                codes += event.codes
                samples += event.float32
                deltas += 1
            case antiphon.Finished():
                finished = event
    assert finished is not None
    frames = np.frombuffer(codes, "<u2").reshape(-1, CHANNELS)
    return Answer(text, ids, frames, np.frombuffer(samples, "<f4"), finished, deltas)


def spoken_pcm16(samples: npt.NDArray[np.float32]) -> bytes:
    """A recording as a conversation brings it."""
    return (samples * 32767).astype("<i2").tobytes()
