from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.unit.services.qwen2_5_omni.token2wav.token2wav_rig import Rig

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def package_rig(omni25_directory: Path) -> Rig:
    # Only while it is made: a fixture that lives longer would leave the mode to other tests.
    with torch.inference_mode():
        return Rig(omni25_directory)


@pytest.fixture
def replayed() -> bool:
    """Whether calls are replayed as graphs; modules whose tests run with both override it."""
    return False


@pytest.fixture
def rig(package_rig: Rig, replayed: bool) -> Rig:
    package_rig.ours = package_rig.replayed if replayed else package_rig.plain
    return package_rig


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield
