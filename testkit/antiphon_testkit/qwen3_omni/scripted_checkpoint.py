"""Write a tiny Qwen3-Omni checkpoint with known replies.

It is the tiny checkpoint with a different head of the thinker. Attention and experts add nothing,
so that the hidden state of a position depends only on its token, and the head has a row for the
next token. Greedy decoding emits `follows[t]` after the token t, regardless of earlier tokens. The
other weights are random, so that talker and code2wav generate noise.
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
"""What a reply follows, the last token of the assistant's header, and what ends it."""

_SILENCED = re.compile(r"^thinker\.model\.layers\..*(o_proj|down_proj)(\.weight)?$")
_SURENESS = 40.0
"""Logit of the token that follows; others' are random, of some parts of it."""


def build_scripted_checkpoint(
    directory: Path, follows: Mapping[str, str], shape: TinyShape = SMALL, seed: int = 0
) -> None:
    """Write a checkpoint to `directory` whose reply is `follows[BEGINNING]`, then the token that
    follows.

    Tokens that the tiny tokenizer does not have are added to it.
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
