"""One tiny Qwen2.5-Omni checkpoint, the reference on it, and the real services on it.

Its talker ends speech by the pad id as often as by the end id, and its mask id, which the decoder
has no row for, is about as likely as a code.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from safetensors.torch import load_file, save_file

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen2_5_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_testkit.qwen2_5_omni.tiny_config import CODEC_MASK
from antiphon_testkit.qwen2_5_omni.tiny_shape import TinyOmni25Shape
from antiphon_tools.launcher.launcher import Launcher, Running
from tests.equality.qwen2_5_omni.omni25_truth import Omni25Truth

SHAPE = TinyOmni25Shape(pad_ends=True)
# vLLM's attention on CPUs has no heads of 16.
SHAPES = {"torch": SHAPE, "vllm": dataclasses.replace(SHAPE, heads=2, kv_heads=1)}
HEAD, LIKELY_CODE = "talker.codec_head.weight", 3


@pytest.fixture(scope="package")
def checkpoint(thinker_engine: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("omni25") / "omni25"
    build_tiny_checkpoint(directory, SHAPES[thinker_engine])
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    shard = directory / index["weight_map"][HEAD]
    tensors = load_file(shard)
    tensors[HEAD][SHAPE.codec_pad + CODEC_MASK] = 1.02 * tensors[HEAD][LIKELY_CODE]
    save_file(tensors, shard, {"format": "pt"})
    return directory


@pytest.fixture(scope="package")
def truth(checkpoint: Path) -> Omni25Truth:
    return Omni25Truth(checkpoint)


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running(checkpoint: Path, thinker: StageConfig) -> AsyncIterator[Running]:
    async with Launcher(local_deployment(checkpoint, thinker=thinker)) as running:
        yield running


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def client(running: Running) -> AsyncIterator[antiphon.AsyncClient]:
    async with antiphon.AsyncClient(running.grpc_address) as client:
        yield client
