"""Tiny checkpoints for the tests that run the real services."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from antiphon.pipelines.qwen3_omni import read_config
from antiphon.testing.tiny_checkpoint import build_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default tiny checkpoint."""
    directory = tmp_path_factory.mktemp("tiny") / "tiny"
    build_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that speaks until its limit: the end of speech is never drawn."""
    directory = tmp_path_factory.mktemp("talkative") / "talkative"
    build_tiny_checkpoint(directory)
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    shard = directory / index["weight_map"]["talker.codec_head.weight"]
    tensors = load_file(shard)
    end = read_config(directory)["talker_config"]["codec_eos_token_id"]
    tensors["talker.codec_head.weight"][end] = 0
    save_file(tensors, shard, {"format": "pt"})
    return directory
