"""What was recorded, and how the running services are asked for it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import antiphon
from antiphon import ChunkPolicy, Delivery, FinishReason
from antiphon.pipelines.ming_tts import FRAME_SAMPLES, FRAME_WIDTH, LATENT_WIDTH
from tests.equality.ming_tts.flash_cases import NAMES
from tests.equality.ming_tts.ming_cases import (
    AUDIO_STEP,
    CLIP,
    DESCRIPTION,
    LATENT_STEP,
    NAMED,
    RATE_HZ,
    REFERENCE_TEXT,
    STYLE,
    VOICE,
    VOICE_NAME,
    Case,
    reference_audio,
)
from tests.equality.read_aloud import Options, Speech, listen, wav

HERE = Path(__file__).parent
TOLERANCE = 1e-4
CLIP_FILE = wav(reference_audio(), RATE_HZ)


@dataclass(frozen=True)
class Recorded:
    """`recorded.npz` and `recorded.json`, or files of another name."""

    arrays: dict[str, npt.NDArray[Any]]
    rows: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, name: str = "recorded") -> Recorded:
        """The files beside this one."""
        with np.load(HERE / f"{name}.npz") as archive:
            arrays = dict(archive)
        told = json.loads((HERE / f"{name}.json").read_text())
        return cls(arrays, {each["case"]: each for each in told["cases"]})

    def of(self, case: Case) -> dict[str, npt.NDArray[Any]]:
        """The arrays of a case."""
        stem = f"{case.name}/"
        return {
            name.removeprefix(stem): array
            for name, array in self.arrays.items()
            if name.startswith(stem)
        }

    def steps(self, case: Case) -> int:
        """How many steps it took."""
        return int(self.rows[case.name]["steps"])

    def seed(self, case: Case) -> int:
        """The request's seed."""
        return int(self.rows[case.name]["seed"])


def options_of(case: Case) -> Options:
    """The options of a request."""
    match case.mode:
        case mode if mode == DESCRIPTION:
            return {"instruction": STYLE}
        case mode if mode == CLIP:
            return {"reference_audio": CLIP_FILE, "reference_text": REFERENCE_TEXT}
        case mode if mode == VOICE:
            return {"reference_audio": CLIP_FILE}
    return {}


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
        voice=VOICE_NAME if case.mode == NAMED else case.mode if case.mode in NAMES else "",
        seed=seed,
        temperature=case.temperature,
        max_tokens=case.most_steps,
        options=options_of(case),
        delivery=delivery,
        chunk_policy=policy,
        include_ids=True,
        timeout_s=240,
    )
    return await listen(generation, FRAME_WIDTH)


def check(speech: Speech, case: Case, recorded: Recorded) -> None:
    """The speech is what is recorded of a case: 14,112 samples for each step."""
    steps = recorded.steps(case)
    assert speech.codes.shape == (steps, FRAME_WIDTH)
    latents = speech.codes.reshape(-1, LATENT_WIDTH)[:, ::LATENT_STEP]
    arrays = recorded.of(case)
    np.testing.assert_allclose(latents, arrays["latents"], rtol=0, atol=TOLERANCE)
    assert len(speech.samples) == FRAME_SAMPLES * steps
    np.testing.assert_allclose(
        speech.samples[::AUDIO_STEP], arrays["audio"], rtol=0, atol=TOLERANCE
    )
    assert speech.finished.usage.completion_audio_frames == steps
    ended = recorded.rows[case.name]["ended"]
    assert speech.finished.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)
