"""Writes a tiny Qwen3-Omni checkpoint whose replies are known beforehand.

It is the tiny checkpoint with another thinker head: attention and experts add nothing, so the
hidden state of a position is its own token's, and the head has a row for one token after another.
Greedily the thinker says `follows[t]` after the token t, whatever came before. All else is as
random as ever, so talker and code2wav make noise of it.
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
    """Write a checkpoint into `directory` that says `follows[BEGINNING]`, then what follows that.

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
