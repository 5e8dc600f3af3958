from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.values.chunk import Tensors
from antiphon_services.qwen3_tts.code2wav.module import load_codec_decoder, vocoder_of
from antiphon_services.vocoder.stream import StreamDecoder
from antiphon_testkit.qwen3_tts.tiny_checkpoint import PRESETS, build_tiny_tts

RECORDED = Path(__file__).parents[3] / "equality" / "qwen3_tts" / "recorded.npz"


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def recorded() -> Tensors:
    with np.load(RECORDED) as file:
        return dict(file)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("qwen3-tts")
    for kind, shape in PRESETS.items():
        build_tiny_tts(folder / kind, shape)
    return {kind: folder / kind for kind in PRESETS}


@pytest.fixture(scope="session")
def decoders(checkpoints: dict[str, Path]) -> dict[str, StreamDecoder]:
    return {
        kind: StreamDecoder(vocoder_of(load_codec_decoder(path, torch.float32, "cpu")))
        for kind, path in checkpoints.items()
    }
