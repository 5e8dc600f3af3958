"""The files of a repository as a hub has them: those that stages read, and others."""

from __future__ import annotations

import json
import struct
from pathlib import Path

MODEL = "acme/Voice-1"
"""A repository of Qwen3-TTS's layout, with files of other formats."""
READ = {
    "config.json",
    "generation_config.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "model.safetensors.index.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "speech_tokenizer/config.json",
    "speech_tokenizer/model.safetensors",
}
"""Its files that stages read."""


def safetensors(size: int) -> bytes:
    """A file of one tensor of so many bytes."""
    described = {"data": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}
    header = json.dumps(described).encode()
    return struct.pack("<Q", len(header)) + header + bytes(index % 251 for index in range(size))


def write_repository(folder: Path) -> Path:
    """The files of `MODEL`."""
    shards = {f"{name}.weight": f"model-0000{name}-of-00002.safetensors" for name in "12"}
    files: dict[str, bytes] = {
        "config.json": b'{"architectures": ["Qwen3TTSForConditionalGeneration"]}',
        "generation_config.json": b"{}",
        "tokenizer_config.json": b'{"tokenizer_class": "Qwen2Tokenizer"}',
        "vocab.json": b"{}",
        "merges.txt": b"#version: 0.2\n",
        "model.safetensors.index.json": json.dumps({"weight_map": shards}).encode(),
        "model-00001-of-00002.safetensors": safetensors(300_000),
        "model-00002-of-00002.safetensors": safetensors(200_000),
        "speech_tokenizer/config.json": b"{}",
        "speech_tokenizer/model.safetensors": safetensors(100_000),
        # What no stage reads.
        ".gitattributes": b"",
        "README.md": b"# A model",
        "picture.png": b"png",
        "consolidated.safetensors": safetensors(50_000),
        "pytorch_model.bin.index.json": b"{}",
        "pytorch_model-00001-of-00001.bin": bytes(50_000),
        "model.gguf": bytes(50_000),
        "onnx/model.onnx": bytes(50_000),
        "speech_tokenizer/pytorch_model.bin": bytes(50_000),
        "training/model.safetensors": safetensors(50_000),
    }
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder
