"""Writes a tiny EMOVA speech tokenizer, which is the directory `emova_speech_tokenizer_hf`.

Files and tensors have the same names as in the vendor's classes.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from antiphon_testkit.emova.tiny_unit_encoder import unit_encoder_tensors
from antiphon_testkit.tensor_shapes import Shapes, convolution
from antiphon_testkit.tiny_weights import WeightRules

SYMBOLS = 4274
"""There are 178 characters, followed by 4096 units."""
HIDDEN, HEADS, LAYERS, INNER, KERNEL = 16, 2, 2, 24, 3
LATENT, STYLE = 8, 6
COUPLINGS, COUPLING_LAYERS, COUPLING_KERNEL = 4, 4, 5
DURATION_FLOWS, DURATION_LAYERS, BINS = 4, 3, 10
WIDEST = 32
RATES = (8, 8, 2, 2)
KERNELS = (3, 7, 11)
DILATIONS = (1, 3, 5)
SPEAKERS = 3

STYLES = tuple(
    f"gender-{gender}_emotion-{emotion}_speed-normal_pitch-normal"
    for gender, emotion in product(("female", "male"), ("angry", "neutral", "sad"))
)

LOG_FRAMES = 1.6
"""The mean logarithm of a unit's duration."""

DECODER_RULES = WeightRules(
    uniform=((r"GAMMA$", 0.6, 1.4),),
    normal=(
        (r"(bias|BETA|logs)$", 0.1),
        (r"enc_p\.emb\.weight$", HIDDEN**-0.5),
        (r"emb_rel_", 0.5),
        (r"style_embedding", 1.0),
        (r"weight_g$", 0.5),
    ),
    gains=(
        (r"conv_[qk]\.weight$", 1.6),
        (r"enc_p\.proj|\.post\.|conv_post|dp\.flows\.\d\.proj", 0.6),
        (r"", 1.2),
    ),
)


def speech_tokenizer_config() -> dict[str, Any]:
    """Return the content of `config.json`. The file that describes the unit type is not needed,
    because it is part of EMOVA's package.
    """
    return {
        "architectures": ["EMOVASpeechTokenizer"],
        "model_type": "emova_speech_tokenizer",
        "s2u_unit_type": "40ms_multilingual_8888",
        "torch_dtype": "float32",
        "u2s_dim_styles": STYLE,
        "u2s_num_styles": len(STYLES),
        "u2s_style2idx": {name: index for index, name in enumerate(STYLES)},
        "u2s_unit_type": "40ms_multilingual_8888_xujing_cosyvoice_FT",
    }


def unit_decoder_shapes() -> Shapes:
    """Return the shapes below `decoder.`, including a few tensors that are only used for
    training.
    """
    shapes: Shapes = {
        "emb_g.weight": (SPEAKERS, STYLE),
        **convolution("enc_q.pre", 513, HIDDEN, 1),
        **convolution("dp.post_pre", 1, HIDDEN, 1),
        "enc_p.emb.weight": (SYMBOLS, HIDDEN),
        **convolution("enc_p.proj", HIDDEN, 2 * LATENT, 1),
        **_duration_shapes("dp"),
        **_generator_shapes("dec"),
    }
    for layer in range(LAYERS):
        stem = "enc_p.encoder"
        for name in "qkvo":
            shapes |= convolution(f"{stem}.attn_layers.{layer}.conv_{name}", HIDDEN, HIDDEN, 1)
        for name in "kv":
            shape = (1, 9, HIDDEN // HEADS)
            shapes[f"{stem}.attn_layers.{layer}.emb_rel_{name}"] = shape
        shapes |= {
            **_norm(f"{stem}.norm_layers_1.{layer}"),
            **_norm(f"{stem}.norm_layers_2.{layer}"),
            **convolution(f"{stem}.ffn_layers.{layer}.conv_1", HIDDEN, INNER, KERNEL),
            **convolution(f"{stem}.ffn_layers.{layer}.conv_2", INNER, HIDDEN, KERNEL),
        }
    for index in range(0, 2 * COUPLINGS, 2):
        stem = f"flow.flows.{index}"
        shapes |= {
            **convolution(f"{stem}.pre", LATENT // 2, HIDDEN, 1),
            **_normed(f"{stem}.enc.cond_layer", STYLE, 2 * HIDDEN * COUPLING_LAYERS, 1),
            **convolution(f"{stem}.post", HIDDEN, LATENT // 2, 1),
        }
        for layer in range(COUPLING_LAYERS):
            outputs = HIDDEN if layer == COUPLING_LAYERS - 1 else 2 * HIDDEN
            gate, out = f"{stem}.enc.in_layers.{layer}", f"{stem}.enc.res_skip_layers.{layer}"
            shapes |= _normed(gate, HIDDEN, 2 * HIDDEN, COUPLING_KERNEL)
            shapes |= _normed(out, HIDDEN, outputs, 1)
    return shapes


def unit_decoder_tensors(seed: int) -> dict[str, torch.Tensor]:
    """Return all of the decoder's tensors, without a name prefix."""
    tensors = DECODER_RULES.draw_each(unit_decoder_shapes(), seed)
    for name, tensor in tensors.items():
        if name.endswith("weight_g"):
            tensor.abs_().add_(1.2 if ".ups." in name else 0.5)
    tensors["dp.flows.0.m"] = tensors["dp.flows.0.m"] * 0.1 - LOG_FRAMES
    return tensors


def write_tiny_speech_tokenizer(folder: Path, seed: int = 0) -> None:
    """Write the tokenizer to a directory, which is created."""
    folder.mkdir(parents=True)
    text = json.dumps(speech_tokenizer_config(), indent=2) + "\n"
    (folder / "config.json").write_text(text)
    styles = {"style_embedding.weight": (len(STYLES), STYLE)}
    tensors = DECODER_RULES.draw_each(styles, seed)
    tensors |= {f"decoder.{name}": each for name, each in unit_decoder_tensors(seed).items()}
    tensors |= {f"encoder.{name}": each for name, each in unit_encoder_tensors(seed).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def _duration_shapes(stem: str) -> Shapes:
    shapes: Shapes = {
        **convolution(f"{stem}.pre", HIDDEN, HIDDEN, 1),
        **convolution(f"{stem}.cond", STYLE, HIDDEN, 1),
        **convolution(f"{stem}.proj", HIDDEN, HIDDEN, 1),
        **_separable_shapes(f"{stem}.convs"),
        f"{stem}.flows.0.m": (2, 1),
        f"{stem}.flows.0.logs": (2, 1),
    }
    for index in range(1, 2 * DURATION_FLOWS, 2):
        flow = f"{stem}.flows.{index}"
        shapes |= {
            **convolution(f"{flow}.pre", 1, HIDDEN, 1),
            **_separable_shapes(f"{flow}.convs"),
            **convolution(f"{flow}.proj", HIDDEN, 3 * BINS - 1, 1),
        }
    return shapes


def _separable_shapes(stem: str) -> Shapes:
    shapes: Shapes = {}
    for layer in range(DURATION_LAYERS):
        shapes |= {
            **convolution(f"{stem}.convs_sep.{layer}", 1, HIDDEN, KERNEL),
            **convolution(f"{stem}.convs_1x1.{layer}", HIDDEN, HIDDEN, 1),
            **_norm(f"{stem}.norms_1.{layer}"),
            **_norm(f"{stem}.norms_2.{layer}"),
        }
    return shapes


def _generator_shapes(stem: str) -> Shapes:
    widths = [WIDEST >> level for level in range(len(RATES) + 1)]
    shapes: Shapes = {
        **convolution(f"{stem}.conv_pre", LATENT, WIDEST, 7),
        **convolution(f"{stem}.cond", STYLE, WIDEST, 1),
        f"{stem}.conv_post.weight": (1, widths[-1], 7),
    }
    for level, rate in enumerate(RATES):
        inputs, width = widths[level : level + 2]
        shapes |= {
            f"{stem}.ups.{level}.weight_g": (inputs, 1, 1),
            f"{stem}.ups.{level}.weight_v": (inputs, width, 2 * rate),
            f"{stem}.ups.{level}.bias": (width,),
        }
        for index, kernel in enumerate(KERNELS):
            block = f"{stem}.resblocks.{level * len(KERNELS) + index}"
            for pair in range(len(DILATIONS)):
                shapes |= _normed(f"{block}.convs1.{pair}", width, width, kernel)
                shapes |= _normed(f"{block}.convs2.{pair}", width, width, kernel)
    return shapes


def _norm(stem: str) -> Shapes:
    return {f"{stem}.GAMMA": (HIDDEN,), f"{stem}.BETA": (HIDDEN,)}


def _normed(stem: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {
        f"{stem}.weight_g": (outputs, 1, 1),
        f"{stem}.weight_v": (outputs, inputs, kernel),
        f"{stem}.bias": (outputs,),
    }
