from pathlib import Path

import pytest

from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint


@pytest.fixture(scope="session")
def omni25_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("omni25") / "checkpoint"
    build_tiny_checkpoint(path)
    return path
