"""Writes a complete Qwen3-TTS checkpoint of a megabyte with random weights.

Run it with `python -m antiphon_testkit.qwen3_tts.tiny_checkpoint DIR`. Files, fields and tensors
have the same names as in a released checkpoint, so that the vendor's package can load it. You can
use it in place of a released checkpoint wherever the audio doesn't matter. The package is not
required to write it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from antiphon.pipelines.qwen3_tts import CODEC_FOLDER
from antiphon_testkit.qwen3_tts.tensor_shapes import decoder_shapes, model_shapes
from antiphon_testkit.qwen3_tts.tiny_config import (
    CODEC_PREPROCESSOR_CONFIG,
    GENERATION_CONFIG,
    PREPROCESSOR_CONFIG,
    make_codec_config,
    make_config,
)
from antiphon_testkit.qwen3_tts.tiny_shape import BASE, CUSTOM_VOICE, TtsShape
from antiphon_testkit.qwen3_tts.tiny_tokenizer import write_tokenizer
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory
from antiphon_testkit.tiny_weights import WeightRules, speech_end

PRESETS = {"custom_voice": CUSTOM_VOICE, "base": BASE}

RULES = WeightRules(
    uniform=(
        (r"cluster_usage$", 0.5, 2.0),
        (r"\.(q|k)_norm\.weight$", 1.0, 2.0),
        (r"layer_scale\.scale$", 0.3, 0.6),
        (r"\.gamma$", 0.2, 0.4),
        (r"(norm\w*)\.weight$", 0.6, 1.4),
    ),
    normal=(
        (r"\.bias$", 0.1),
        (r"\.(alpha|beta)$", 0.3),
        (r"embed(ding)?_sum$", 1.0),
        (r"code_predictor\.model\.codec_embedding", 0.5),
        (r"(text|codec)_embedding\.weight$", 1.0),
    ),
    gains=(
        (r"(lm_head\.\d+|codec_head)\.weight$", 3.0),
        (r"text_projection\.linear_fc2\.weight$", 3.0),
        (r"^decoder\.decoder\.6\.", 0.12),
        (r"^decoder\.decoder\.\d+\.block\.[234]\.", 0.4),
        (r"^decoder\.(decoder|upsample)", 0.8),
        (r"", 1.5),
    ),
)

PADDING_SHIFT = 2.0


def build_tiny_tts(directory: Path, shape: TtsShape = CUSTOM_VOICE, seed: int = 0) -> None:
    """Write a checkpoint to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. Raises `FailedPrecondition` if the
    directory is not empty.
    """
    make_directory(directory)
    codec = directory / CODEC_FOLDER
    codec.mkdir()
    ids = write_tokenizer(directory)
    text_vocabulary = max(ids.values()) + 1
    config = make_config(shape, ids, text_vocabulary)
    codec_config = make_codec_config(shape)
    for path, content in (
        (directory / "config.json", config),
        (directory / "generation_config.json", GENERATION_CONFIG),
        (directory / "preprocessor_config.json", PREPROCESSOR_CONFIG),
        (codec / "config.json", codec_config),
        (codec / "preprocessor_config.json", CODEC_PREPROCESSOR_CONFIG),
    ):
        path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")
    tensors = RULES.draw_each(model_shapes(shape, text_vocabulary), seed)
    _shape_endings(tensors, config)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    save_file(
        _codec_tensors(shape, codec_config, seed), codec / "model.safetensors", {"format": "pt"}
    )


def _codec_tensors(shape: TtsShape, config: dict[str, Any], seed: int) -> dict[str, torch.Tensor]:
    shapes, strides = decoder_shapes(shape)
    tensors = RULES.draw_each(shapes, seed, strides)
    for name, size in _encoder_shapes(config["encoder_config"]).items():
        name = f"encoder.{name}"
        initialised = name.endswith(".initialized")
        tensors[name] = torch.ones(size) if initialised else RULES.draw(name, size, seed)
    return tensors


def _encoder_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the parts of Mimi that the codec's encoder uses."""
    from transformers import MimiConfig, MimiModel

    with torch.device("meta"):
        model = MimiModel(MimiConfig(**config))
    parts = ("encoder.", "encoder_transformer.", "downsample.", "quantizer.")
    return {
        name: tuple(tensor.shape)
        for name, tensor in model.state_dict().items()
        if name.startswith(parts)
    }


def _shape_endings(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    """Change the weights so that speech ends occasionally, and more often after the end of its
    text.
    """
    padding = tensors["talker.model.text_embedding.weight"][config["tts_pad_token_id"]]
    for part in ("linear_fc1", "linear_fc2"):
        stem = f"talker.text_projection.{part}"
        padding = tensors[f"{stem}.weight"] @ padding + tensors[f"{stem}.bias"]
        if part == "linear_fc1":
            padding = torch.nn.functional.silu(padding)
    head, end = tensors["talker.codec_head.weight"], config["talker_config"]["codec_eos_token_id"]
    head[end] = speech_end(head[end], padding * tensors["talker.model.norm.weight"], PADDING_SHIFT)


COMMAND = TinyCheckpointCommand(
    "Qwen3-TTS", "antiphon_testkit.qwen3_tts.tiny_checkpoint", PRESETS, build_tiny_tts
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
