"""The checkpoint that the vendor's code was asked on, and what it said."""

from __future__ import annotations

from pathlib import Path

import pytest
from ming_asking import Recorded, TalkerInProcess

from antiphon.testing.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon.testing.ming_tts.tiny_shape import WINDOWED
from tests.equality.ming_tts.ming_cases import SEED

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


@pytest.fixture(scope="package")
def recorded() -> Recorded:
    """What the vendor's code makes of the cases."""
    return Recorded.read()


@pytest.fixture(scope="package")
def ming_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The checkpoint that the vendor's code was asked on."""
    folder = tmp_path_factory.mktemp("ming_tts") / "tiny"
    build_tiny_ming(folder, WINDOWED, SEED)
    return folder


@pytest.fixture(scope="package")
def talker(ming_checkpoint: Path) -> TalkerInProcess:
    """The talker of the checkpoint."""
    return TalkerInProcess(ming_checkpoint)
