from __future__ import annotations

from pathlib import Path

import pytest
import torch

from antiphon_testkit.cosyvoice3.tiny_checkpoint import PRESETS, build_tiny_cosyvoice

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("inflect")


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("cosyvoice3")
    for name, shape in PRESETS.items():
        build_tiny_cosyvoice(folder / name, shape)
    return {name: folder / name for name in PRESETS}
