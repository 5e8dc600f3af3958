"""The recorded answers, and the tiny models that give them."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest
import torch

from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.diffusion.llada import Llada
from antiphon_services.diffusion.masked_answer import DrawnIds
from antiphon_testkit import tiny_llada as tiny
from tests.equality.masked_diffusion.diffusion_cases import IMAGE, SEED, SPEECH, TEXT
from tests.equality.masked_diffusion.diffusion_lab import Lab


@pytest.fixture(scope="package")
def recorded() -> dict[str, npt.NDArray[np.generic]]:
    """What the vendor's code made, by preset and case."""
    with np.load(Path(__file__).parent / "recorded.npz") as file:
        return dict(file)


@pytest.fixture(scope="package", params=tiny.SHAPES)
def preset(request: pytest.FixtureRequest) -> str:
    """The name of a shape."""
    return str(request.param)


@pytest.fixture(scope="package")
def lab(preset: str, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The tiny model of a shape, loaded from its checkpoint."""
    folder = tmp_path_factory.mktemp("llada") / "model"
    tiny.write_tiny_llada(folder, tiny.SHAPES[preset], SEED)
    model = load_submodule(
        Llada,
        SimpleNamespace(**json.loads((folder / "config.json").read_text())),
        tiny.PREFIX,
        Weights(folder),
        dtype=torch.float32,
        device="cpu",
    )
    units = range(tiny.FIRST_UNIT, tiny.FIRST_UNIT + tiny.SPEECH_IDS)
    image = range(tiny.FIRST_IMAGE, tiny.FIRST_IMAGE + tiny.IMAGE_IDS)
    return Lab(
        model,
        {
            TEXT: DrawnIds.any_but(model, tiny.MASK),
            SPEECH: DrawnIds.only(model, [*units, tiny.END_OF_AUDIO, tiny.END_OF_TEXT]),
            IMAGE: DrawnIds.only(model, image),
        },
    )
