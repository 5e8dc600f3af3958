from __future__ import annotations

from pathlib import Path

import pytest

from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, build_tiny_checkpoint


@pytest.fixture(scope="session")
def other_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("other") / "tiny-other"
    build_tiny_checkpoint(directory, OTHER, seed=4)
    return directory
