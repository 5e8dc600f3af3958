"""The tokenizer hears recordings as EMOVA's own code does."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.values.chunk import Tensor
from antiphon_services.emova.unit_tokenizer import (
    INPUT_RATE_HZ,
    LEAST_SAMPLES,
    LEVELS,
    MOST_S,
    NUMBERS,
    UnitTokenizer,
    load_unit_tokenizer,
    quantised,
)
from antiphon_testkit.emova.tiny_speech_tokenizer import write_tiny_speech_tokenizer
from tests.equality.emova.emova_cases import HEARD_CASES, SEED, HeardCase

pytestmark = pytest.mark.equality

BY_NAME = {case.name: case for case in HEARD_CASES}
WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    """What EMOVA's code made, by case and name."""
    with np.load(Path(__file__).parent / "recorded.npz") as file:
        return dict(file)


def loaded(folder: Path) -> UnitTokenizer:
    """The tokenizer of a directory."""
    return load_unit_tokenizer(Weights(folder), dtype=torch.float32, device=torch.device("cpu"))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> UnitTokenizer:
    """That of a tiny speech tokenizer."""
    folder = tmp_path_factory.mktemp("emova") / "tokenizer"
    write_tiny_speech_tokenizer(folder, SEED)
    return loaded(folder)


@pytest.mark.parametrize("case", HEARD_CASES, ids=lambda case: case.name)
def test_a_recording_is_heard_as_recorded(
    case: HeardCase, tokenizer: UnitTokenizer, recorded: dict[str, Tensor]
) -> None:
    expected, clear = recorded[f"{case.name}/units"], recorded[f"{case.name}/clear"]
    assert clear.mean() > 0.9
    units = tokenizer.units(case.samples, reduced=False)
    assert units.dtype == np.uint16
    assert len(units) == len(expected)
    np.testing.assert_array_equal(units[clear], expected[clear])


def test_repeated_units_are_reduced(tokenizer: UnitTokenizer) -> None:
    samples = BY_NAME["seconds"].samples
    units = tokenizer.units(samples, reduced=False).tolist()
    reduced = [unit for at, unit in enumerate(units) if not at or unit != units[at - 1]]
    assert len(reduced) < len(units), "the case repeats units"
    assert tokenizer.units(samples).tolist() == reduced


def test_loudness_does_not_matter(tokenizer: UnitTokenizer) -> None:
    samples = BY_NAME["even"].samples
    quiet = tokenizer.units(samples * np.float32(0.5), reduced=False)
    assert (quiet == tokenizer.units(samples, reduced=False)).mean() > 0.9


def test_silence_and_the_longest_recording_are_heard(tokenizer: UnitTokenizer) -> None:
    assert len(tokenizer.units(np.zeros(INPUT_RATE_HZ, np.float32))) >= 1
    units = tokenizer.units(np.zeros(MOST_S * INPUT_RATE_HZ, np.float32), reduced=False)
    assert len(units) == MOST_S * 25
    assert units.max() < LEVELS**NUMBERS


@pytest.mark.parametrize("count", [0, LEAST_SAMPLES - 1, MOST_S * INPUT_RATE_HZ + 1])
def test_recordings_of_other_lengths_are_refused(count: int, tokenizer: UnitTokenizer) -> None:
    with pytest.raises(InvalidArgument, match=f"257 samples to 60 s at 16000 Hz, got {count}"):
        tokenizer.units(np.zeros(count, np.float32))


def test_every_unit_is_a_combination_of_levels() -> None:
    """The extremes reach the outer levels, and zero is a level."""
    low, zero, high = (torch.full((1, NUMBERS), each) for each in (-50.0, 0.0, 50.0))
    assert quantised(low).item() == 0
    assert quantised(high).item() == LEVELS**NUMBERS - 1
    assert quantised(zero).item() == sum(4 * LEVELS**place for place in range(NUMBERS))
    first = torch.tensor([[-50.0, -50.0, -50.0, 50.0]])
    assert quantised(first).item() == 7 * LEVELS**3, "the last number counts most"


@pytest.mark.parametrize(
    "name", ["encoder.pre_quant.weight", "encoder.encoder.wav2spec.featurizer.fb"]
)
def test_missing_tensors_are_refused(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "tokenizer"
    write_tiny_speech_tokenizer(folder, SEED)
    tensors = load_file(folder / WEIGHTS)
    del tensors[name]
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(FailedPrecondition, match=f"has no tensor {name}"):
        loaded(folder)
