from pathlib import Path

import pytest
import torch

from tests.unit.services.qwen2_5_omni.talker.codec_talker_lab import Lab

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def package_lab(omni25_directory: Path) -> Lab:
    return Lab(omni25_directory)


@pytest.fixture
def launch_ahead() -> bool:
    """Whether the labs' engines do; modules whose tests run with both override it."""
    return False


@pytest.fixture
def lab(package_lab: Lab, launch_ahead: bool) -> Lab:
    package_lab.launch_ahead = launch_ahead
    return package_lab


@pytest.fixture
def own_lab(omni25_directory: Path, launch_ahead: bool) -> Lab:
    """One whose weights a test may change."""
    lab = Lab(omni25_directory)
    lab.launch_ahead = launch_ahead
    return lab
