from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from token2wav_rig import Rig

torch.set_num_threads(1)


@pytest.fixture(scope="package")
def rig(omni25_directory: Path) -> Rig:
    # Only while it is made: a fixture that lives longer would leave the mode to other tests.
    with torch.inference_mode():
        return Rig(omni25_directory)


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield
