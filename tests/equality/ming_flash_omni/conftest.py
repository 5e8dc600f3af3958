"""The checkpoints that the vendor's thinker was asked on, and what it answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_testkit.ming_flash_omni.flash_checkpoint import PRESETS, build_tiny_flash
from tests.equality.ming_flash_omni.flash_cases import SEED
from tests.equality.ming_flash_omni.flash_truth import FlashTruth


@pytest.fixture(scope="package")
def flash_truth() -> FlashTruth:
    """What the vendor's thinker answers to the cases."""
    return FlashTruth.read()


@pytest.fixture(scope="package")
def flash_checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each preset."""
    folder = tmp_path_factory.mktemp("ming_flash_omni")
    for name, shape in PRESETS.items():
        build_tiny_flash(folder / name, shape, SEED)
    return {name: folder / name for name in PRESETS}


@pytest.fixture(params=PRESETS)
def preset(request: pytest.FixtureRequest) -> str:
    """The name of a checkpoint."""
    return str(request.param)
