"""Random weights of a tiny Qwen3-Omni checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from antiphon.testing.tiny_weights import WeightRules, end_replies, lean

if TYPE_CHECKING:
    from transformers import Qwen3OmniMoeForConditionalGeneration

RULES = WeightRules(
    uniform=(
        (r"\.(q|k)_norm\.weight$", 1.0, 2.0),
        (r"layer_scale\.scale$", 0.3, 0.6),
        (r"\.gamma$", 0.2, 0.4),
        (r"(norm\w*|ln_\w+|ln_q|mlp\.0)\.weight$", 0.6, 1.4),
    ),
    normal=(
        (r"\.bias$", 0.1),
        (r"\.(alpha|beta)$", 0.3),
        (r"code_predictor\.model\.codec_embedding", 0.5),
        (r"(embed_tokens|codec_embedding|code_embedding|pos_embed)\.weight$", 1.0),
    ),
    gains=(
        (r"\.mlp\.gate\.weight$", 2.5),
        (r"(lm_head(\.\d+)?|codec_head)\.weight$", 3.0),
        (r"(text|hidden)_projection\.linear_fc2\.weight$", 3.0),
        (r"^code2wav\.decoder\.6\.", 0.12),
        (r"^code2wav\.decoder\.\d+\.block\.[234]\.", 0.4),
        (r"^code2wav\.(decoder|upsample)", 0.8),
        (r"", 1.5),
    ),
)

# Logits of the end ids spread this much wider than others.
THINKER_END_GAIN = 1.8
TALKER_END_GAIN = 1.2
NEWLINE_SHIFT = -12.0
PADDING_SHIFT = 10.0
# The byte token that ends the assistant header; byte tokens are numbered by byte.
NEWLINE_ID = 10


@torch.no_grad()
def fill_weights(
    model: Qwen3OmniMoeForConditionalGeneration, spoken: Sequence[int], seed: int
) -> None:
    """Overwrite every parameter. `spoken`: thinker ids that a reply may consist of."""
    RULES.fill(model, seed)
    _shape_endings(model, spoken)


@torch.no_grad()
def remove_endings(
    model: Qwen3OmniMoeForConditionalGeneration, *, text: bool, speech: bool
) -> None:
    """Let replies or speech go on for ever: a zero row is never drawn, see `_shape_endings`."""
    config: Any = model.config
    if text:
        model.thinker.lm_head.weight[config.im_end_token_id] = 0.0
    if speech:
        model.talker.codec_head.weight[config.talker_config.codec_eos_token_id] = 0.0


def _shape_endings(model: Qwen3OmniMoeForConditionalGeneration, spoken: Sequence[int]) -> None:
    """Let replies and speech end by themselves, and consist of text and codes only.

    Replies: see `end_replies`. Speech seldom ends before its text, as the stop code's row leans
    towards the padding that follows the text.
    """
    config: Any = model.config
    thinker, talker = model.thinker, model.talker
    words = thinker.model.embed_tokens.weight
    end_replies(
        thinker.lm_head.weight,
        spoken,
        config.im_end_token_id,
        gain=THINKER_END_GAIN,
        against=words[NEWLINE_ID] * thinker.model.norm.weight,
        shift=NEWLINE_SHIFT,
    )
    eos = config.talker_config.codec_eos_token_id
    padding = talker.text_projection(words[config.tts_pad_token_id]) * talker.model.norm.weight
    codec_head = talker.codec_head.weight
    codec_head[eos] = TALKER_END_GAIN * codec_head[eos] + lean(padding, PADDING_SHIFT)
