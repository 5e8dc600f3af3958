"""Writes a complete Covo-Audio checkpoint of a few megabytes with random weights.

Run it with `python -m antiphon_testkit.covo_audio.tiny_checkpoint DIR`. Files, fields and tensors
have the same names as in a released checkpoint, so that the vendor's code can load it. The vendor
distributes the voice with its code instead of with the checkpoint. Here it is written to
`VOICE_FOLDER`.
"""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from antiphon_testkit.covo_audio.tensor_shapes import (
    FILTER,
    filters_of,
    flow_shapes,
    model_shapes,
    vocoder_shapes,
)
from antiphon_testkit.covo_audio.tiny_config import CODE_ENTRIES, SPECIAL_TOKENS, model_config
from antiphon_testkit.covo_audio.tiny_shape import RELEASED, WRAPPED, CovoShape
from antiphon_testkit.tiny_checkpoint import TinyCheckpointCommand, make_directory
from antiphon_testkit.tiny_tokenizer import PLAIN_ADDED_TOKENS, write_slow_tokenizer
from antiphon_testkit.tiny_weights import WeightRules

PRESETS = {"released": RELEASED, "wrapped": WRAPPED}

TOKEN2WAV, VOICE_FOLDER = "token2wav", "token2wav/prompt"

SPOKEN_IDS = (32, *range(97, 123))
"""The bytes for a space and for lowercase letters, which are used for the text of replies."""
SPOKEN_CODES = 96
"""The number of different codes that occur in replies. They are spread over the whole range."""
TEXT_GAIN = 1.15
END_GAINS = {"<|im_end|>": 1.35, "<|endoftext|>": 1.2}
ROTARY_BASE = 50_000.0

MODEL_RULES = WeightRules(
    uniform=((r"norm\w*\.weight$", 0.6, 1.4),),
    normal=((r"\.bias$", 0.1), (r"embed_tokens\.weight$", 1.0), (r"embed_positions", 0.3)),
    gains=((r"lm_head", 3.0), (r"(q|k)_proj\.weight$", 1.6), (r"", 1.2)),
)
DECODER_RULES = WeightRules(
    uniform=(),
    normal=(
        (r"act\.(alpha|beta)$", 0.3),
        (r"conv_post\.bias$", 0.02),
        (r"\.bias$", 0.1),
        (r"token_embedding\.weight$", 1.0),
    ),
    gains=((r"(q|k)_proj\.weight$", 1.6), (r"modulation", 0.6), (r"", 1.0)),
)
LENGTHS = ((r"conv_post", 0.1), (r"resblocks", 0.5), (r"^ups", 1.5), (r"", 1.0))
"""The lengths of kernels, by name pattern."""


def build_tiny_covo(directory: Path, shape: CovoShape = RELEASED, seed: int = 0) -> None:
    """Write a checkpoint to `directory`, which is created if it doesn't exist.

    The same shape and seed always give the same weights. Raises `FailedPrecondition` if the
    directory is not empty.
    """
    make_directory(directory)
    ids = write_slow_tokenizer(directory, SPECIAL_TOKENS, PLAIN_ADDED_TOKENS)
    text_ids = len(ids)
    config = model_config(shape, text_ids, ids["<|endoftext|>"])
    (directory / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = MODEL_RULES.draw_each(model_shapes(shape, text_ids + CODE_ENTRIES), seed)
    _shape_replies(tensors["llm.lm_head.weight"], ids, text_ids)
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})
    _write_token2wav(directory / TOKEN2WAV, shape, seed)
    _write_voice(directory / VOICE_FOLDER, shape, seed)


def _shape_replies(head: torch.Tensor, ids: dict[str, int], text_ids: int) -> None:
    """Change the head so that replies consist of letters and some codes, and end by themselves."""
    codes = [text_ids + at * (CODE_ENTRIES - 1) // (SPOKEN_CODES - 1) for at in range(SPOKEN_CODES)]
    ends = [ids[end] for end in END_GAINS]
    silent = torch.ones(len(head), dtype=torch.bool)
    silent[[*SPOKEN_IDS, *codes, *ends]] = False
    head[silent] = 0.0
    head[list(SPOKEN_IDS)] *= TEXT_GAIN
    for end, gain in END_GAINS.items():
        head[ids[end]] *= gain


def _write_token2wav(folder: Path, shape: CovoShape, seed: int) -> None:
    folder.mkdir()
    flow, vocoder = flow_shapes(shape), vocoder_shapes(shape)
    tensors: dict[str, torch.Tensor] = {}
    strides = {"token_proj.1.weight": 4}
    for name, tensor in DECODER_RULES.draw_each(flow, seed, strides).items():
        tensors[f"token2latent.{name}"] = tensor
    head_dim = shape.flow_hidden // shape.flow_heads
    for layer in range(shape.flow_layers):
        powers = torch.arange(0, head_dim, 2).float() / head_dim
        name = f"token2latent.blocks.{layer}.attn.rotary.inv_freq"
        tensors[name] = 1.0 / ROTARY_BASE**powers
    made = DECODER_RULES.draw_each(vocoder, seed)
    for name, tensor in made.items():
        if name.endswith(".weight_g"):
            tensor.copy_(_lengths(name, made[name.removesuffix("g") + "v"]))
        tensors[f"wavegan.{name}"] = tensor
    for name in filters_of(vocoder):
        tensors[f"wavegan.{name}"] = low_pass()
    # The file also contains parts that inference doesn't use.
    tensors["wavegan.encoder.0.bias"] = torch.zeros(3)
    content = (
        {f"module.{name}": each for name, each in tensors.items()} if shape.wrapped else tensors
    )
    torch.save({"model": content} if not shape.wrapped else content, folder / "model.pt")
    drawn = np.random.default_rng(seed)
    statistics = np.concatenate(
        (0.1 * drawn.standard_normal(shape.latent), drawn.uniform(0.5, 1.5, shape.latent))
    )
    np.save(folder / "global_mean_var.npy", statistics.astype(np.float32)[None])


def _lengths(name: str, directions: torch.Tensor) -> torch.Tensor:
    """Return lengths [n, 1, 1] with which a convolution of these directions preserves the signal
    level.
    """
    gain = next(gain for pattern, gain in LENGTHS if re.search(pattern, name))
    return torch.full((len(directions), 1, 1), gain)


def low_pass() -> torch.Tensor:
    """Return the filter [1, 1, FILTER] of an activation, which is a sinc at half the band in a
    Kaiser window.
    """
    half = FILTER // 2
    attenuation = 2.285 * (half - 1) * math.pi * 1.2 + 7.95
    beta = 0.5842 * (attenuation - 21) ** 0.4 + 0.07886 * (attenuation - 21.0)
    window = torch.kaiser_window(FILTER, beta=beta, periodic=False)
    made = 0.5 * window * torch.sinc(0.5 * (torch.arange(-half, half) + 0.5))
    return (made / made.sum()).view(1, 1, FILTER)


def _write_voice(folder: Path, shape: CovoShape, seed: int) -> None:
    folder.mkdir()
    drawn = np.random.default_rng(seed + 1)
    latents = 4 * shape.prompt_codes + shape.surplus_latents
    np.save(folder / "prompt_token.npy", drawn.integers(CODE_ENTRIES, size=(1, shape.prompt_codes)))
    made = drawn.standard_normal((1, latents, shape.latent), np.float32)
    np.save(folder / "prompt_latent.npy", made)
    np.save(folder / "speaker_embed.npy", drawn.standard_normal((1, shape.speaker), np.float32))


COMMAND = TinyCheckpointCommand(
    "Covo-Audio", "antiphon_testkit.covo_audio.tiny_checkpoint", PRESETS, build_tiny_covo
)

if __name__ == "__main__":
    sys.exit(COMMAND.run())
