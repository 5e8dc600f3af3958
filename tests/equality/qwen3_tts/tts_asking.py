"""Asks the running services as the vendor's package was asked, and compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import antiphon
from antiphon import ChunkPolicy, Delivery, FinishReason
from antiphon.pipelines.qwen3_tts import STREAMED_TEXT, WHOLE_TEXT
from tests.equality.qwen3_tts.cases import AUDIO_STEP, REFERENCE, REFERENCE_TEXT, Case, Recording
from tests.equality.read_aloud import Options, Speech, listen, wav

AUDIO_TOLERANCE = 1e-5
SAMPLES_PER_FRAME = 1920


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
        samples = recording.of(self.arrays["reference/audio"].astype(np.int16))
        return wav(samples, recording.rate_hz)

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
    """The speech is what is recorded of a case, and ends as the case does."""
    codes = recorded.codes(case)
    speech.check(
        codes,
        recorded.audio(case),
        step=AUDIO_STEP,
        samples_each=SAMPLES_PER_FRAME,
        tolerance=AUDIO_TOLERANCE,
    )
    # A stop code that the last draw gave would be no cut.
    if len(codes) + 1 < case.max_new_tokens:
        assert speech.finished.finish_reason is FinishReason.STOP
