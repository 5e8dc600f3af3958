"""Asks the running services as the vendor's code was asked, and compares."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import soundfile

import antiphon
from antiphon import ChunkPolicy, Delivery
from tests.equality.cosyvoice3.cosy_cases import (
    AUDIO_STEP,
    CROSS_LINGUAL,
    INSTRUCT,
    INSTRUCTION,
    RATE_HZ,
    REFERENCE_TEXT,
    Case,
    reference_audio,
)

SLOTS = 8
AUDIO_TOLERANCE = 1e-4
SAMPLES_PER_CODE = 960

Options = dict[str, str | float | bytes]


@dataclass(frozen=True, slots=True)
class Recorded:
    """What the vendor's code makes of the cases, under the names of `recorded.npz`, and of
    `masked.npz`."""

    arrays: Mapping[str, npt.NDArray[np.generic]]
    masked: Mapping[str, npt.NDArray[np.float32]]
    seeds: Mapping[str, int]

    @classmethod
    def read(cls) -> Recorded:
        """The files in this folder."""
        folder = Path(__file__).parent
        told = json.loads((folder / "recorded.json").read_text())["cases"]
        with np.load(folder / "recorded.npz") as file, np.load(folder / "masked.npz") as masked:
            return cls(dict(file), dict(masked), {each["case"]: each["seed"] for each in told})

    def codes(self, case: Case) -> npt.NDArray[np.uint16]:
        """The codes of a case: [n]."""
        return self.arrays[f"{case.name}/codes"].astype(np.uint16)

    def audio(self, case: Case, delivery: Delivery | None = None) -> npt.NDArray[np.float32]:
        """Every so many samples of a case; those of the flow with a block mask unless it is
        delivered whole."""
        if delivery is Delivery.WHOLE:
            return self.arrays[f"{case.name}/audio"].astype(np.float32)
        return self.masked[case.name]


def wav(samples: npt.NDArray[np.int16], rate_hz: int = RATE_HZ) -> bytes:
    """A recording as a WAV file."""
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, "PCM_16", format="WAV")
    return file.getvalue()


def options_of(case: Case) -> Options:
    """The options of a request."""
    if case.voice:
        return {}
    options: Options = {"reference_audio": wav(reference_audio())}
    if case.mode == INSTRUCT:
        options["instruction"] = INSTRUCTION
    elif case.mode != CROSS_LINGUAL:
        options["reference_text"] = REFERENCE_TEXT
    return options


@dataclass(frozen=True, slots=True)
class Speech:
    """What came through the services."""

    codes: npt.NDArray[np.uint16]
    samples: npt.NDArray[np.float32]
    finished: antiphon.Finished


async def listen(generation: antiphon.AsyncGeneration) -> Speech:
    """Read an answer with its codes to the end."""
    codes, samples = b"", b""
    finished = None
    async for event in generation:
        match event:
            case antiphon.AudioDelta():
                assert event.first_sample == len(samples) // 4
                codes += event.codes
                samples += event.float32
            case antiphon.Finished():
                finished = event
    assert finished is not None
    return Speech(np.frombuffer(codes, "<u2"), np.frombuffer(samples, "<f4"), finished)


async def speak(
    client: antiphon.AsyncClient,
    case: Case,
    seed: int,
    *,
    delivery: Delivery | None = None,
    policy: ChunkPolicy | None = None,
) -> Speech:
    """Send a case through the services."""
    generation = client.generate(
        case.text,
        modalities=("audio",),
        voice=case.voice,
        seed=seed,
        options=options_of(case),
        delivery=delivery,
        chunk_policy=policy,
        include_ids=True,
        timeout_s=240,
    )
    return await listen(generation)


def check(speech: Speech, case: Case, recorded: Recorded, delivery: Delivery | None = None) -> None:
    """Codes are identical, samples within the tolerance, and their number is exact."""
    codes = recorded.codes(case)
    np.testing.assert_array_equal(speech.codes, codes)
    assert len(speech.samples) == SAMPLES_PER_CODE * len(codes)
    heard = speech.samples[::AUDIO_STEP]
    np.testing.assert_allclose(heard, recorded.audio(case, delivery), rtol=0, atol=AUDIO_TOLERANCE)
    assert speech.finished.usage.completion_audio_frames == len(codes)
