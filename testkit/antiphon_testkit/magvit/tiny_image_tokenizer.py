"""Writes a tiny MAGVITv2, which is the directory `magvitv2`.

Files and tensors have the same names as in the vendor's class. The widths can't be any smaller,
because they must be divisible by the number of groups in the norms.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from antiphon_testkit.tensor_shapes import Shapes
from antiphon_testkit.tiny_weights import WeightRules

WIDTH = 32
BITS = 13
ENCODER_MULTIPLES, ENCODER_BLOCKS = (1, 2, 2), (2, 1, 1)
DECODER_MULTIPLES, DECODER_BLOCKS = (1, 1, 2), (1, 2, 1)
SCALE = 1 << (len(DECODER_MULTIPLES) - 1)

RULES = WeightRules(
    uniform=((r"norm\w*\.weight$", 0.6, 1.4),),
    normal=((r"bias$", 0.1),),
    gains=((r"\.[qk]\.weight$", 1.6), (r"decoder\.conv_out", 0.8), (r"", 1.0)),
)


def image_tokenizer_shapes() -> Shapes:
    """Return the names and shapes of all parameters."""
    return {**_encoder_shapes(), **_decoder_shapes()}


def write_tiny_image_tokenizer(folder: Path, seed: int = 0) -> None:
    """Write the network to a directory, which is created."""
    folder.mkdir(parents=True)
    text = json.dumps({"_class_name": "MAGVITv2", "_diffusers_version": "0.30.1"}) + "\n"
    (folder / "config.json").write_text(text)
    tensors = RULES.draw_each(image_tokenizer_shapes(), seed)
    ids = torch.arange(1 << BITS)[:, None]
    shifts = torch.arange(BITS - 1, -1, -1)
    tensors["quantize.embedding"] = (ids >> shifts & 1) * 2.0 - 1.0
    tensors["quantize.power_vals"] = 2**shifts
    save_file(tensors, folder / "pytorch_model.safetensors", {"format": "pt"})


def _encoder_shapes() -> Shapes:
    shapes: Shapes = _square("encoder.conv_in", 3, WIDTH)
    inputs = WIDTH
    for level, count in enumerate(ENCODER_BLOCKS):
        width = WIDTH * ENCODER_MULTIPLES[level]
        for block in range(count):
            shapes |= _residual(f"encoder.down.{level}.block.{block}", inputs, width)
            inputs = width
        if level < len(ENCODER_BLOCKS) - 1:
            shapes |= _square(f"encoder.down.{level}.downsample.conv", width, width)
    return {
        **shapes,
        **_middle("encoder.mid", inputs),
        **_norm("encoder.norm_out", inputs),
        **_square("encoder.conv_out", inputs, BITS),
        **_square("encoder.quant_conv", BITS, BITS, 1),
    }


def _decoder_shapes() -> Shapes:
    inputs = WIDTH * DECODER_MULTIPLES[-1]
    shapes: Shapes = {
        **_square("decoder.post_quant_conv", BITS, BITS, 1),
        **_square("decoder.conv_in", BITS, inputs),
        **_middle("decoder.mid", inputs),
    }
    for level in reversed(range(len(DECODER_BLOCKS))):
        width = WIDTH * DECODER_MULTIPLES[level]
        for block in range(DECODER_BLOCKS[level]):
            shapes |= _residual(f"decoder.up.{level}.block.{block}", inputs, width)
            inputs = width
        if level:
            shapes |= _square(f"decoder.up.{level}.upsample.conv", width, width)
    return {
        **shapes,
        **_norm("decoder.norm_out", inputs),
        **_square("decoder.conv_out", inputs, 3),
    }


def _residual(stem: str, inputs: int, outputs: int) -> Shapes:
    shapes: Shapes = {
        **_norm(f"{stem}.norm1", inputs),
        **_square(f"{stem}.conv1", inputs, outputs),
        **_norm(f"{stem}.norm2", outputs),
        **_square(f"{stem}.conv2", outputs, outputs),
    }
    return shapes | (
        _square(f"{stem}.nin_shortcut", inputs, outputs, 1) if inputs != outputs else {}
    )


def _middle(stem: str, width: int) -> Shapes:
    shapes: Shapes = {
        **_residual(f"{stem}.block_1", width, width),
        **_norm(f"{stem}.attn_1.norm", width),
        **_residual(f"{stem}.block_2", width, width),
    }
    for name in ("q", "k", "v", "proj_out"):
        shapes |= _square(f"{stem}.attn_1.{name}", width, width, 1)
    return shapes


def _square(stem: str, inputs: int, outputs: int, kernel: int = 3) -> Shapes:
    return {f"{stem}.weight": (outputs, inputs, kernel, kernel), f"{stem}.bias": (outputs,)}


def _norm(stem: str, width: int) -> Shapes:
    return {f"{stem}.weight": (width,), f"{stem}.bias": (width,)}
