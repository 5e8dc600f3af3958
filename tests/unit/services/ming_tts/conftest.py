from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon_testkit.ming_tts.tiny_checkpoint import PRESETS, build_tiny_ming

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("ming_tts")
    for name, shape in PRESETS.items():
        build_tiny_ming(folder / name, shape)
    return {name: folder / name for name in PRESETS}
