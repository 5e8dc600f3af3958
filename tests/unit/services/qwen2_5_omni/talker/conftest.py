from pathlib import Path

import pytest
import torch
from codec_talker_lab import Lab

torch.set_num_threads(1)


@pytest.fixture(scope="package")
def lab(omni25_directory: Path) -> Lab:
    return Lab(omni25_directory)


@pytest.fixture
def own_lab(omni25_directory: Path) -> Lab:
    """One whose weights a test may change."""
    return Lab(omni25_directory)
