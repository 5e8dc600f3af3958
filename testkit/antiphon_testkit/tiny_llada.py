"""Writes a tiny LLaDA whose vocabulary consists of text, image tokens and speech units, as in
Dynin-Omni.

The tensors and the fields of `config.json` have the same names as in the released model.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from antiphon_testkit.tensor_shapes import Shapes, linear
from antiphon_testkit.tiny_checkpoint import make_directory
from antiphon_testkit.tiny_shape import TinySizes
from antiphon_testkit.tiny_weights import WeightRules

TEXT_IDS, IMAGE_IDS, SPEECH_IDS = 160, 64, 48
"""The number of IDs of each kind, in the order of the vocabulary."""
FIRST_IMAGE, FIRST_UNIT = TEXT_IDS, TEXT_IDS + IMAGE_IDS
MASK, END_OF_AUDIO, END_OF_TEXT, END_OF_IMAGE = 150, 151, 152, 153
PREFIX = "model.transformer."
END_GAIN = 1.5
"""Makes some speech end before its last position."""

RULES = WeightRules(
    uniform=((r"(norm|ln_f)\.weight$", 0.6, 1.4),),
    normal=((r"wte\.weight$", 1.0),),
    gains=((r"transformer\.ff_out", 3.0), (r"(q|k)_proj\.weight$", 1.6), (r"", 1.2)),
)


@dataclass(frozen=True, slots=True)
class LladaShape(TinySizes):
    """The sizes of the transformer. `inner` is the width of the MLP."""

    hidden: int = 32
    layers: int = 2
    heads: int = 4
    kv_heads: int = 4
    inner: int = 48


AS_RELEASED = LladaShape()
"""As in the released model, there are as many key heads as query heads."""
GROUPED = LladaShape(hidden=48, layers=3, heads=4, kv_heads=2, inner=40)

SHAPES = {"as-released": AS_RELEASED, "grouped": GROUPED}


@dataclass(frozen=True, slots=True)
class LladaVocabulary:
    """The number of text IDs, image tokens and speech units, in this order."""

    text: int = TEXT_IDS
    image: int = IMAGE_IDS
    speech: int = SPEECH_IDS

    @property
    def size(self) -> int:
        """The total size of the vocabulary."""
        return self.text + self.image + self.speech


FEW_IDS = LladaVocabulary()


def write_tiny_llada(directory: Path, shape: LladaShape, seed: int = 0) -> None:
    """Write `config.json` and `model.safetensors` to `directory`.

    The same shape and seed always give the same weights. Raises `FailedPrecondition` if the
    directory is not empty.
    """
    make_directory(directory)
    (directory / "config.json").write_text(json.dumps(llada_config(shape), indent=2) + "\n")
    tensors = RULES.draw_each(llada_shapes(shape), seed)
    head = tensors[f"{PREFIX}ff_out.weight"]
    head[MASK] = 0.0
    head[END_OF_AUDIO] *= END_GAIN
    save_file(tensors, directory / "model.safetensors", {"format": "pt"})


def llada_config(shape: LladaShape, vocabulary: LladaVocabulary = FEW_IDS) -> dict[str, Any]:
    """Return the fields of `config.json` that determine the network."""
    return {
        "model_type": "dynin_omni",
        "d_model": shape.hidden,
        "n_heads": shape.heads,
        "n_kv_heads": shape.kv_heads,
        "n_layers": shape.layers,
        "mlp_hidden_size": shape.inner,
        "vocab_size": vocabulary.size,
        "embedding_size": vocabulary.size,
        "max_sequence_length": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "activation_type": "silu",
        "block_type": "llama",
        "layer_norm_type": "rms",
        "rope": True,
        "rope_full_precision": True,
        "alibi": False,
        "attention_layer_norm": False,
        "include_bias": False,
        "include_qkv_bias": False,
        "bias_for_layer_norm": False,
        "input_emb_norm": False,
        "scale_logits": False,
        "weight_tying": False,
        "attention_dropout": 0.0,
        "embedding_dropout": 0.0,
        "residual_dropout": 0.0,
        "flash_attention": False,
        "multi_query_attention": None,
        "init_device": "cpu",
        "codebook_size": vocabulary.image,
    }


def llada_shapes(shape: LladaShape, vocabulary: LladaVocabulary = FEW_IDS) -> Shapes:
    """Return the names and shapes of all parameters."""
    width, keys = shape.hidden, shape.hidden // shape.heads * shape.kv_heads
    shapes: Shapes = {
        f"{PREFIX}wte.weight": (vocabulary.size, width),
        f"{PREFIX}ln_f.weight": (width,),
        f"{PREFIX}ff_out.weight": (vocabulary.size, width),
    }
    for index in range(shape.layers):
        block = f"{PREFIX}blocks.{index}"
        shapes |= {
            f"{block}.attn_norm.weight": (width,),
            f"{block}.ff_norm.weight": (width,),
            **linear(f"{block}.q_proj", width, width, bias=False),
            **linear(f"{block}.k_proj", width, keys, bias=False),
            **linear(f"{block}.v_proj", width, keys, bias=False),
            **linear(f"{block}.attn_out", width, width, bias=False),
            **linear(f"{block}.ff_proj", width, shape.inner, bias=False),
            **linear(f"{block}.up_proj", width, shape.inner, bias=False),
            **linear(f"{block}.ff_out", shape.inner, width, bias=False),
        }
    return shapes
