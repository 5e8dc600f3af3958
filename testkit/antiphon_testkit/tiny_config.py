"""Parts of the configuration of a tiny checkpoint that several families write alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon_testkit.tiny_shape import TinyMultimodalSizes, TinySizes

VOCABULARY_MULTIPLE = 64


def padded_vocabulary(size: int) -> int:
    """Rows of a table of words: a multiple of `VOCABULARY_MULTIPLE` above `size`."""
    return (size // VOCABULARY_MULTIPLE + 1) * VOCABULARY_MULTIPLE


def decoder_sizes(shape: TinySizes, part: str = "", *, hidden: int = 0) -> dict[str, int]:
    """Return a decoder's sizes under the names of transformers.

    The names in `shape` begin with `part`. If there are none, `hidden` is given, and the
    intermediate size is twice the hidden size.
    """
    hidden = hidden or getattr(shape, f"{part}hidden")
    sizes = {
        "hidden_size": hidden,
        "intermediate_size": getattr(shape, f"{part}intermediate", 2 * hidden),
        "num_hidden_layers": getattr(shape, f"{part}layers"),
        "num_attention_heads": getattr(shape, f"{part}heads"),
        "num_key_value_heads": getattr(shape, f"{part}kv_heads"),
    }
    head_dim = getattr(shape, f"{part}head_dim", None)
    return sizes if head_dim is None else sizes | {"head_dim": head_dim}


def audio_tower(shape: TinyMultimodalSizes) -> dict[str, int]:
    """`audio_config`: 128 mel bins in, rows of the decoder's width out."""
    return {
        "num_mel_bins": 128,
        "d_model": shape.audio_hidden,
        "encoder_layers": shape.audio_layers,
        "encoder_attention_heads": shape.audio_heads,
        "encoder_ffn_dim": 2 * shape.audio_hidden,
        "output_dim": shape.hidden,
    }


def vision_tower(shape: TinyMultimodalSizes) -> dict[str, int]:
    """`vision_config`: rows of the decoder's width out."""
    return {
        "depth": shape.vision_layers,
        "hidden_size": shape.vision_hidden,
        "intermediate_size": 2 * shape.vision_hidden,
        "num_heads": shape.vision_heads,
        "out_hidden_size": shape.hidden,
    }


def rope(theta: float) -> dict[str, Any]:
    """RoPE with one axis."""
    return {"rope_type": "default", "rope_theta": theta}


def mrope(head_dim: int, side: int) -> dict[str, Any]:
    """RoPE with three axes, two of `side` pairs; together they cover half of the head dimension."""
    return rope(1000000.0) | {"mrope_section": [head_dim // 2 - 2 * side, side, side]}


def media_ids(ids: Mapping[str, int], named: Mapping[str, str], placeholder: str) -> dict[str, int]:
    """Return the ids of placeholders for media and of the marks around them.

    `named` maps roles to tokens, as `TokenizerKind.named` does; the key of a placeholder ends in
    `placeholder`.
    """
    found = {
        f"{kind}_token_{placeholder}": ids[named[f"{kind}_token"]]
        for kind in ("audio", "image", "video")
    }
    marks = (("start", "bos"), ("end", "eos"))
    return found | {
        f"{kind}_{side}_token_id": ids[named[f"{kind}_{mark}_token"]]
        for kind in ("audio", "vision")
        for side, mark in marks
    }
