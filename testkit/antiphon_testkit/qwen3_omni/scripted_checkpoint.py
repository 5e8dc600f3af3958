"""Writes a tiny Qwen3-Omni checkpoint with known replies.

It is the same as the tiny checkpoint, but the thinker has a different head. Its attention and
experts don't contribute anything, so the hidden state at a position depends only on the token
there, and the head has a row for the next token. Greedy decoding emits `follows[t]` after token t,
regardless of earlier tokens. The remaining weights are random, so the talker and code2wav generate
noise.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from antiphon_testkit.qwen3_omni.tiny_checkpoint import build_tiny_checkpoint
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL, TinyShape

BEGINNING, END = "\n", "<|im_end|>"
"""The last token of the assistant header, which a reply follows, and the token that ends a
reply.
"""

_SILENCED = re.compile(r"^thinker\.model\.layers\..*(o_proj|down_proj)(\.weight)?$")
_SURENESS = 40.0
"""The logit of the token that follows. The logits of all other tokens are random and much
smaller.
"""


def build_scripted_checkpoint(
    directory: Path, follows: Mapping[str, str], shape: TinyShape = SMALL, seed: int = 0
) -> None:
    """Write a checkpoint to `directory`. Its reply consists of `follows[BEGINNING]`, the token that
    follows it, and so on.

    If the tiny tokenizer doesn't have one of these tokens, it is added.
    """

    def edit(model: Any, ids: Mapping[str, int]) -> None:
        parameters = dict(model.named_parameters())
        for name, parameter in parameters.items():
            if _SILENCED.match(name):
                parameter.zero_()
        words, norm = model.thinker.model.embed_tokens.weight, model.thinker.model.norm.weight
        head = model.thinker.lm_head.weight
        head.zero_()
        for token, following in follows.items():
            state = torch.nn.functional.normalize(words[ids[token]], dim=0) * norm
            head[ids[following]] += state * (_SURENESS / float(state.norm() ** 2))

    tokens = dict.fromkeys([*follows, *follows.values()])
    build_tiny_checkpoint(directory, shape, seed, added=tuple(tokens), edit=edit)
