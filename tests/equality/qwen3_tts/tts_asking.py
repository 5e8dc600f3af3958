"""Asks the running services as the vendor's package was asked, and compares."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import soundfile

import antiphon
from antiphon import ChunkPolicy, Delivery, FinishReason
from antiphon.pipelines.qwen3_tts import STREAMED_TEXT, WHOLE_TEXT
from tests.equality.qwen3_tts.cases import AUDIO_STEP, REFERENCE, REFERENCE_TEXT, Case, Recording

# As many sessions as share an engine.
SLOTS = 8
AUDIO_TOLERANCE = 1e-5
SAMPLES_PER_FRAME = 1920

Options = dict[str, str | float | bytes]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the vendor's package makes of the cases, under the names of `recorded.npz`."""

    arrays: Mapping[str, npt.NDArray[np.generic]]

    def codes(self, case: Case) -> npt.NDArray[np.uint16]:
        """The frames of a case: [n, groups]."""
        return self.arrays[f"{case.name}/codes"].astype(np.uint16)

    def audio(self, case: Case) -> npt.NDArray[np.float32]:
        """Every so many samples of a case."""
        return self.arrays[f"{case.name}/audio"].astype(np.float32)

    def wav(self, recording: Recording = REFERENCE) -> bytes:
        """A recording whose voice is cloned, as a WAV file."""
        file = io.BytesIO()
        samples = recording.of(self.arrays["reference/audio"].astype(np.int16))
        soundfile.write(file, samples, recording.rate_hz, "PCM_16", format="WAV")
        return file.getvalue()

    def options(self, case: Case) -> Options:
        """The options of a request; empty ones are left out."""
        options: Options = {
            "text_mode": WHOLE_TEXT if case.whole_text else STREAMED_TEXT,
            "language": case.language,
            "instruction": case.instruction,
            "reference_text": REFERENCE_TEXT if case.clone == "codes" else "",
            "reference_audio": self.wav(case.recording) if case.clone else b"",
        }
        return {name: value for name, value in options.items() if value}


@dataclass(frozen=True, slots=True)
class Speech:
    """What came through the services."""

    codes: npt.NDArray[np.uint16]
    samples: npt.NDArray[np.float32]
    finished: antiphon.Finished
    deltas: int


async def listen(generation: antiphon.AsyncGeneration, groups: int) -> Speech:
    """Read an answer with its frames to the end."""
    codes, samples, deltas = b"", b"", 0
    finished = None
    async for event in generation:
        match event:
            case antiphon.AudioDelta():
                assert event.first_sample == len(samples) // 4
                codes += event.codes
                samples += event.float32
                deltas += 1
            case antiphon.Finished():
                finished = event
    assert finished is not None
    frames = np.frombuffer(codes, "<u2").reshape(-1, groups)
    return Speech(frames, np.frombuffer(samples, "<f4"), finished, deltas)


async def speak(
    client: antiphon.AsyncClient,
    case: Case,
    recorded: Recorded,
    *,
    delivery: Delivery | None = None,
    policy: ChunkPolicy | None = None,
) -> Speech:
    """Send a case through the services, greedily."""
    generation = client.generate(
        case.text,
        modalities=("audio",),
        voice=case.voice,
        temperature=0.0,
        max_tokens=case.max_new_tokens,
        options=recorded.options(case),
        delivery=delivery,
        chunk_policy=policy,
        include_ids=True,
        timeout_s=240,
    )
    return await listen(generation, recorded.codes(case).shape[1])


def check(speech: Speech, case: Case, recorded: Recorded) -> None:
    """The law."""
    codes = recorded.codes(case)
    np.testing.assert_array_equal(speech.codes, codes)
    assert len(speech.samples) == SAMPLES_PER_FRAME * len(codes)
    heard = speech.samples[::AUDIO_STEP]
    np.testing.assert_allclose(heard, recorded.audio(case), rtol=0, atol=AUDIO_TOLERANCE)
    assert speech.finished.usage.completion_audio_frames == len(codes)
    # A stop code that the last draw gave would be no cut.
    if len(codes) + 1 < case.max_new_tokens:
        assert speech.finished.finish_reason is FinishReason.STOP
