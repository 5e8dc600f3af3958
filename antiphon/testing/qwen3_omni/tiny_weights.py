"""Random weights under which mistakes show.

Hugging Face's own initialisation makes a dead model: tiny logits, layers scaled by
1e-6, expert weights left uninitialised. Here every part has a say in the greedy
output: attention is sharp, routers decide clearly, logits are far from uniform, and
audio stays inside [-1, 1]. Each tensor draws from a generator of its own, seeded by
its name, so adding a layer leaves the other weights as they were.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from transformers import Qwen3OmniMoeForConditionalGeneration

# First match wins: pattern, lowest, highest. Vectors that multiply.
UNIFORM = (
    (r"\.(q|k)_norm\.weight$", 1.0, 2.0),
    (r"layer_scale\.scale$", 0.3, 0.6),
    (r"\.gamma$", 0.2, 0.4),
    (r"(norm\w*|ln_\w+|ln_q|mlp\.0)\.weight$", 0.6, 1.4),
)

# First match wins: pattern, standard deviation.
NORMAL = (
    (r"\.bias$", 0.1),
    (r"\.(alpha|beta)$", 0.3),
    (r"code_predictor\.model\.codec_embedding", 0.5),
    (r"(embed_tokens|codec_embedding|code_embedding|pos_embed)\.weight$", 1.0),
)

# First match wins: pattern, gain over 1/sqrt(inputs).
GAINS = (
    (r"\.mlp\.gate\.weight$", 2.5),
    (r"(lm_head(\.\d+)?|codec_head)\.weight$", 3.0),
    (r"(text|hidden)_projection\.linear_fc2\.weight$", 3.0),
    (r"^code2wav\.decoder\.6\.", 0.12),
    (r"^code2wav\.decoder\.\d+\.block\.[234]\.", 0.4),
    (r"^code2wav\.(decoder|upsample)", 0.8),
    (r"", 1.5),
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
    transposed = {
        f"{name}.weight": module.stride[0]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ConvTranspose1d)
    }
    for name, parameter in model.named_parameters():
        parameter.copy_(_draw(name, parameter, transposed.get(name), seed))
    _shape_endings(model, spoken)


def _draw(name: str, like: torch.Tensor, stride: int | None, seed: int) -> torch.Tensor:
    """Fresh values for one parameter; `stride` is given for a transposed convolution."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    for pattern, low, high in UNIFORM:
        if like.ndim == 1 and re.search(pattern, name):
            return low + (high - low) * torch.rand(like.shape, generator=generator)
    noise = torch.randn(like.shape, generator=generator)
    for pattern, std in NORMAL:
        if re.search(pattern, name):
            return std * noise
    gain = next(gain for pattern, gain in GAINS if re.search(pattern, name))
    return noise * (gain / math.sqrt(_inputs(name, like, stride)))


def _inputs(name: str, like: torch.Tensor, stride: int | None) -> int:
    """How many products make one output value."""
    if stride is not None:
        return like.shape[0] * like.shape[2] // stride
    if ".experts." in name or like.ndim == 2:
        return like.shape[-1]
    return like[0].numel()


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

    An end id wins now and then, as its row is longer than others. A reply seldom ends
    at once, as the row leans away from the assistant header's newline; speech seldom
    ends before its text, as the row leans towards the padding that follows the text. A
    zero row has logit 0, which is never the highest among hundreds.
    """
    config: Any = model.config
    thinker, talker = model.thinker, model.talker
    words, head = thinker.model.embed_tokens.weight, thinker.lm_head.weight
    end = THINKER_END_GAIN * head[config.im_end_token_id]
    silent = torch.ones(len(head), dtype=torch.bool)
    silent[list(spoken)] = False
    head[silent] = 0.0
    newline = words[NEWLINE_ID] * thinker.model.norm.weight
    head[config.im_end_token_id] = end + _lean(newline, NEWLINE_SHIFT)

    eos = config.talker_config.codec_eos_token_id
    padding = talker.text_projection(words[config.tts_pad_token_id]) * talker.model.norm.weight
    codec_head = talker.codec_head.weight
    codec_head[eos] = TALKER_END_GAIN * codec_head[eos] + _lean(padding, PADDING_SHIFT)


def _lean(direction: torch.Tensor, shift: float) -> torch.Tensor:
    """What to add to a row of a head, so that its logit rises by `shift` if the final
    hidden state is all `direction`."""
    return direction * (shift / math.sqrt(len(direction)) / float(direction.norm()))
