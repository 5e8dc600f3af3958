"""The random weights of a tiny Qwen3-Omni checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from antiphon_testkit.qwen3_omni.tiny_shape import TinyShape
from antiphon_testkit.tiny_weights import WeightRules, end_replies, speech_end

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

PADDING_SHIFT = 10.0


@torch.no_grad()
def fill_weights(
    model: Qwen3OmniMoeForConditionalGeneration, shape: TinyShape, spoken: Sequence[int], seed: int
) -> None:
    """Overwrite every parameter. With these weights, replies consist of the IDs in `spoken`, and
    replies and speech end by themselves.
    """
    RULES.fill(model, seed)
    config: Any = model.config
    thinker, talker = model.thinker, model.talker
    words = thinker.model.embed_tokens.weight
    end_replies(
        thinker.lm_head.weight,
        spoken,
        config.im_end_token_id,
        words=words,
        norm=thinker.model.norm.weight,
        endless=shape.endless_text,
    )
    eos = config.talker_config.codec_eos_token_id
    padding = talker.text_projection(words[config.tts_pad_token_id]) * talker.model.norm.weight
    head = talker.codec_head.weight
    # A zero row is never drawn. See `end_replies`.
    head[eos] = 0.0 if shape.endless_speech else speech_end(head[eos], padding, PADDING_SHIFT)
