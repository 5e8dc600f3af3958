"""The checkpoints that the vendor's code was asked on, and what it made."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_testkit.dynin_omni.tiny_checkpoint import PRESETS, build_tiny_dynin
from tests.equality.dynin_omni.dynin_cases import SEED
from tests.equality.dynin_omni.dynin_truth import DyninTruth


@pytest.fixture(scope="package")
def dynin_truth() -> DyninTruth:
    """What the vendor's code makes of the cases."""
    return DyninTruth.read()


@pytest.fixture(scope="package")
def dynin_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each preset."""
    folder = tmp_path_factory.mktemp("dynin_omni")
    for name, shape in PRESETS.items():
        build_tiny_dynin(folder / name, shape, SEED)
    return {name: folder / name for name in PRESETS}


@pytest.fixture(scope="package", params=PRESETS)
def preset(request: pytest.FixtureRequest) -> str:
    """The name of a checkpoint."""
    return str(request.param)
