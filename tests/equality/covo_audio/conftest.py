"""The checkpoints that the vendor's code was asked on, and what it made."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_testkit.covo_audio.tiny_checkpoint import PRESETS, build_tiny_covo
from tests.equality.covo_audio.covo_cases import SEED
from tests.equality.covo_audio.covo_truth import CovoTruth


@pytest.fixture(scope="package")
def covo_truth() -> CovoTruth:
    """What the vendor's code makes of the cases."""
    return CovoTruth.read()


@pytest.fixture(scope="package")
def covo_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each preset."""
    folder = tmp_path_factory.mktemp("covo_audio")
    for name, shape in PRESETS.items():
        build_tiny_covo(folder / name, shape, SEED)
    return {name: folder / name for name in PRESETS}


@pytest.fixture(params=PRESETS)
def preset(request: pytest.FixtureRequest) -> str:
    """The name of a checkpoint."""
    return str(request.param)


@pytest.fixture
def covo_checkpoint(preset: str, covo_checkpoints: dict[str, Path]) -> Path:
    """That checkpoint."""
    return covo_checkpoints[preset]
