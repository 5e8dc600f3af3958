"""Writes a tiny random Ming TTS checkpoint with the files of the released one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file

from antiphon_testkit.cosyvoice3.tiny_networks import write_speaker_network
from antiphon_testkit.ming_tts.tensor_shapes import (
    head_shapes,
    language_model_shapes,
    vae_shapes,
)
from antiphon_testkit.ming_tts.tiny_config import SPECIAL_TOKENS, model_config
from antiphon_testkit.ming_tts.tiny_shape import UNBOUNDED, WINDOWED, MingShape
from antiphon_testkit.tensor_shapes import Shapes
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory
from antiphon_testkit.tiny_tokenizer import PLAIN_ADDED_TOKENS, write_slow_tokenizer
from antiphon_testkit.tiny_weights import WeightRules

PRESETS = {"windowed": WINDOWED, "unbounded": UNBOUNDED}

ROUNDED_TO = 64

ROTARY_BASE = 10_000.0
STOP_LEAN = -2.0
LOUDNESS = 1.0
"""Mean of the log magnitudes that the audio decoder makes."""

RULES = WeightRules(
    uniform=((r"norm\w*\.weight$", 0.6, 1.4),),
    normal=(
        (r"head\.out\.bias$", 0.02),
        (r"\.bias$", 0.1),
        (r"(embed_tokens|word_embedder)\.weight$|cls_embed$", 1.0),
    ),
    gains=(
        (r"stop_head\.weight$", 2.0),
        (r"head\.out\.weight$", 0.7),
        (r"", 1.2),
    ),
)


def build_tiny_ming(directory: Path, shape: MingShape = WINDOWED, seed: int = 0) -> None:
    """Write a checkpoint into `directory`, which is made if it is missing.

    The same shape and seed give the same weights. Raises `FailedPrecondition` if the directory
    holds something already.
    """
    make_directory(directory)
    ids = write_slow_tokenizer(directory, SPECIAL_TOKENS, PLAIN_ADDED_TOKENS)
    vocabulary = -(-(max(ids.values()) + 1) // ROUNDED_TO) * ROUNDED_TO
    config = json.dumps(model_config(shape, vocabulary), indent=2)
    (directory / "config.json").write_text(config + "\n")
    tensors = _draw(
        language_model_shapes(shape, vocabulary) | head_shapes(shape) | vae_shapes(shape), seed
    )
    tensors["stop_head.bias"] += torch.tensor([0.0, STOP_LEAN])
    bias = tensors["audio.decoder.head.out.bias"]
    bias[: len(bias) // 2] += LOUDNESS
    window = torch.hann_window(2 * (len(bias) // 2 - 1))
    tensors["audio.decoder.head.istft.window"] = window
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    write_speaker_network(directory / "campplus.onnx", seed)


def _draw(shapes: Shapes, seed: int) -> dict[str, torch.Tensor]:
    tensors = RULES.draw_each(shapes, seed)
    for name, tensor in tensors.items():
        if name.endswith(".inv_freq"):
            powers = torch.arange(len(tensor)).float() / len(tensor)
            tensors[name] = 1.0 / ROTARY_BASE**powers
    return tensors


COMMAND = TinyCheckpointCommand(
    "Ming TTS", "antiphon_testkit.ming_tts.tiny_checkpoint", PRESETS, build_tiny_ming
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
