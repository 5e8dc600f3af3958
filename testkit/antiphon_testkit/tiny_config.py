"""Sections of a tiny checkpoint's configuration that are the same for several families."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon_testkit.tiny_shape import TinyMultimodalSizes, TinySizes

VOCABULARY_MULTIPLE = 64


def padded_vocabulary(size: int) -> int:
    """Return the number of rows in a word table, which is a multiple of `VOCABULARY_MULTIPLE` above
    `size`.
    """
    return (size // VOCABULARY_MULTIPLE + 1) * VOCABULARY_MULTIPLE


def decoder_sizes(shape: TinySizes, part: str = "", *, hidden: int = 0) -> dict[str, int]:
    """Return a decoder's sizes under the names that transformers uses.

    Their names in `shape` begin with `part`. If `shape` doesn't contain any, `hidden` must be
    given, and the intermediate size is twice the hidden size.
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
    """Return `audio_config`. The tower converts 128 mel bins to rows of the decoder's width."""
    return {
        "num_mel_bins": 128,
        "d_model": shape.audio_hidden,
        "encoder_layers": shape.audio_layers,
        "encoder_attention_heads": shape.audio_heads,
        "encoder_ffn_dim": 2 * shape.audio_hidden,
        "output_dim": shape.hidden,
    }


def vision_tower(shape: TinyMultimodalSizes) -> dict[str, int]:
    """Return `vision_config`. The tower's rows have the decoder's width."""
    return {
        "depth": shape.vision_layers,
        "hidden_size": shape.vision_hidden,
        "intermediate_size": 2 * shape.vision_hidden,
        "num_heads": shape.vision_heads,
        "out_hidden_size": shape.hidden,
    }


def rope(theta: float) -> dict[str, Any]:
    """Return the settings for RoPE with one axis."""
    return {"rope_type": "default", "rope_theta": theta}


def mrope(head_dim: int, side: int) -> dict[str, Any]:
    """Return the settings for RoPE with three axes. Two of them have `side` pairs, and together the
    three cover half of the head dimension.
    """
    return rope(1000000.0) | {"mrope_section": [head_dim // 2 - 2 * side, side, side]}


def media_ids(ids: Mapping[str, int], named: Mapping[str, str], placeholder: str) -> dict[str, int]:
    """Return the IDs of the media placeholders, and of the marks around them.

    `named` maps roles to tokens, as in `TokenizerKind.named`. The keys of placeholders end with
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
