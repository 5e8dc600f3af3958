"""Asks the running services as the vendor's code was asked, and compares."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import antiphon
from antiphon import ChunkPolicy, Delivery
from tests.equality.cosyvoice3.cosy_cases import (
    AUDIO_STEP,
    CROSS_LINGUAL,
    INSTRUCT,
    INSTRUCTION,
    REFERENCE_TEXT,
    Case,
    reference_audio,
)
from tests.equality.read_aloud import Options, Speech, listen, wav

AUDIO_TOLERANCE = 1e-4
SAMPLES_PER_CODE = 960


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
    """The speech is what is recorded of a case."""
    speech.check(
        recorded.codes(case),
        recorded.audio(case, delivery),
        step=AUDIO_STEP,
        samples_each=SAMPLES_PER_CODE,
        tolerance=AUDIO_TOLERANCE,
    )
