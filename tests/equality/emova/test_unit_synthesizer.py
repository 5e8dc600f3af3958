"""The synthesizer speaks units as EMOVA's own code does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.values.chunk import Tensor
from antiphon_services.emova.synthesizer import (
    MOST_UNITS,
    UnitSynthesizer,
    load_synthesizer,
    read_styles,
)
from antiphon_testkit.emova.tiny_speech_tokenizer import STYLES, write_tiny_speech_tokenizer
from tests.equality.emova.emova_cases import SAMPLE_STEP, SEED, UNIT_CASES, UnitCase

pytestmark = pytest.mark.equality

TOLERANCE = 1e-4
BY_NAME = {case.name: case for case in UNIT_CASES}
WEIGHTS, CONFIG = "model.safetensors", "config.json"


@pytest.fixture(scope="module")
def recorded() -> dict[str, Tensor]:
    """What EMOVA's code made, by case and name."""
    with np.load(Path(__file__).parent / "recorded.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny speech tokenizer."""
    folder = tmp_path_factory.mktemp("emova") / "tokenizer"
    write_tiny_speech_tokenizer(folder, SEED)
    return folder


def loaded(folder: Path) -> UnitSynthesizer:
    """The synthesizer of a directory."""
    made, count = load_synthesizer(Weights(folder), dtype=torch.float32, device=torch.device("cpu"))
    assert count == len(STYLES)
    return made


@pytest.fixture(scope="module")
def synthesizer(tokenizer: Path) -> UnitSynthesizer:
    """That of the tiny speech tokenizer."""
    return loaded(tokenizer)


def spoken(synthesizer: UnitSynthesizer, case: UnitCase, window: int | None = None) -> Tensor:
    """A case's samples, generated at once or in windows of so many latents."""
    latents = synthesizer.latents(case.units, STYLES.index(case.style), case.key)
    window = window or latents.frames
    parts = [
        synthesizer.samples(latents, first, min(first + window, latents.frames))
        for first in range(0, latents.frames, window)
    ]
    return np.concatenate(parts)


@pytest.mark.parametrize("name", BY_NAME)
def test_a_case_sounds_as_recorded(
    name: str, synthesizer: UnitSynthesizer, recorded: dict[str, Tensor]
) -> None:
    samples = spoken(synthesizer, BY_NAME[name])
    assert len(samples) == synthesizer.hop * recorded[f"{name}/frames"].sum()
    assert np.abs(samples[::SAMPLE_STEP] - recorded[f"{name}/samples"]).max() < TOLERANCE


@pytest.mark.parametrize("window", [1, 7, 256])
def test_windows_equal_a_whole_pass(window: int, synthesizer: UnitSynthesizer) -> None:
    case = BY_NAME["short" if window < 7 else "windows"]
    whole = spoken(synthesizer, case)
    np.testing.assert_allclose(spoken(synthesizer, case, window), whole, rtol=0, atol=1e-5)


def test_style_and_key_change_the_speech(synthesizer: UnitSynthesizer) -> None:
    by_name = {name: spoken(synthesizer, BY_NAME[name]) for name in BY_NAME}
    for name in ("other-style", "other-key"):
        size = min(len(by_name["short"]), len(by_name[name]))
        assert np.abs(by_name["short"][:size] - by_name[name][:size]).max() > 0.1


def test_the_longest_utterance_is_spoken(synthesizer: UnitSynthesizer) -> None:
    latents = synthesizer.latents(np.arange(MOST_UNITS, dtype=np.uint16), 0, 0)
    assert latents.frames >= MOST_UNITS
    last = synthesizer.samples(latents, latents.frames - 1, latents.frames)
    assert len(last) == synthesizer.hop
    assert np.isfinite(last).all()


def replaced(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    """A tiny speech tokenizer with other tensors."""
    write_tiny_speech_tokenizer(folder, SEED)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return folder


@pytest.mark.parametrize("log_frames", [-11.0, -200.0, float("nan")])
def test_speech_without_end_is_refused(log_frames: float, tmp_path: Path) -> None:
    """Also if the numbers overflow, or are none."""

    def lengthen(tensors: dict[str, torch.Tensor]) -> None:
        tensors["decoder.dp.flows.0.m"] = torch.full((2, 1), log_frames)

    endless = loaded(replaced(tmp_path / "endless", lengthen))
    with pytest.raises(InvalidArgument, match="speech for 9 units is longer than 120 s"):
        spoken(endless, BY_NAME["short"])


def test_an_utterance_without_duration_has_one_frame(tmp_path: Path) -> None:
    def shorten(tensors: dict[str, torch.Tensor]) -> None:
        tensors["decoder.dp.flows.0.m"] = torch.full((2, 1), 200.0)

    silent = loaded(replaced(tmp_path / "silent", shorten))
    assert len(spoken(silent, BY_NAME["short"])) == silent.hop


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("style_embedding.weight", "has no tensor style_embedding.weight"),
        ("decoder.enc_p.emb.weight", "has no tensor decoder.enc_p.emb.weight"),
        ("decoder.flow.flows.2.post.bias", "missing: decoder.flow.flows.2.post.bias"),
    ],
)
def test_missing_tensors_are_refused(name: str, error: str, tmp_path: Path) -> None:
    with pytest.raises(FailedPrecondition, match=error):
        loaded(replaced(tmp_path / "incomplete", lambda tensors: tensors.pop(name)))


def test_an_embedding_without_all_units_is_refused(tmp_path: Path) -> None:
    def shrink(tensors: dict[str, torch.Tensor]) -> None:
        name = "decoder.enc_p.emb.weight"
        tensors[name] = tensors[name][:4095].clone()

    with pytest.raises(FailedPrecondition, match="has 4095 rows, but there are 4096 units"):
        loaded(replaced(tmp_path / "small", shrink))


def test_styles_have_names_and_rows(tokenizer: Path) -> None:
    weights = Weights(tokenizer)
    config = json.loads((tokenizer / CONFIG).read_text())
    assert list(read_styles(weights, config, len(STYLES))) == list(STYLES)
    for broken in ({}, {"u2s_style2idx": {}}, {"u2s_style2idx": {"beyond": len(STYLES)}}):
        with pytest.raises(FailedPrecondition, match="u2s_style2idx"):
            read_styles(weights, broken, len(STYLES))
