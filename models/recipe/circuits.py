"""Initializes attention heads so that they attend to the correct row from the first step.

To say words in new combinations, the talker and the thinker each require one type of look-up. Both
only emerge slowly during training. The talker looks up the text row that belongs to the token it is
speaking, and the row after it. The thinker looks up the word that followed the last word in the
question (an induction head). These look-ups are written into the first layers before the training,
which then refines them.

Contents are compared in dimensions of a head that RoPE rotates slowly, and adjacent positions are
found in dimensions that it rotates quickly. Dimensions i and i + half are rotated together.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from models.recipe.codes import CLOCK_GROUP, ENTRIES, TEXT_OVER, TOKEN_GROUP

SLOW_FROM = 5
FAST = (0, 1)
SHARPNESS = 1.8
INDEX_WIDTH, INDEX_LENGTH = 32, 3.0
NEXT, CURRENT, CLOCK = (slice(at, at + INDEX_WIDTH) for at in (0, 32, 64))
IDENTITY = 96
CONSTANT = 127
PREVIOUS = slice(IDENTITY, IDENTITY + 22)


def _slow(head: int) -> list[int]:
    half = head // 2
    return [*range(SLOW_FROM, half), *range(half + SLOW_FROM, head)]


def _orthogonal(rows: int, columns: int, generator: torch.Generator) -> torch.Tensor:
    """Return a matrix with orthonormal rows, or orthonormal columns if there are fewer of them."""
    square = torch.randn(max(rows, columns), max(rows, columns), generator=generator)
    turned: torch.Tensor = torch.linalg.qr(square).Q
    return turned[:rows, :columns]


@torch.no_grad()
def wire_pointer(talker: Any, seed: int) -> None:
    """Make the heads of the first layer look up the next text row and the current one in turn."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in talker.text_projection.parameters():
        parameter.mul_(3.0)
    tables = talker.code_predictor.model.codec_embedding
    for table in (talker.model.codec_embedding, *tables):
        table.weight.mul_(4.0)
        table.weight[:, CLOCK] = 0.0
    # Initially, these dimensions only contain the number of a row, so it can be found without
    # noise.
    talker.text_projection.linear_fc2.weight[CLOCK] = 0.0
    talker.text_projection.linear_fc2.bias[CLOCK] = 0.0
    # The last entry stands for the number -1, which is that of the row before the first frame.
    index = INDEX_LENGTH * torch.nn.functional.normalize(
        torch.randn(ENTRIES + 1, INDEX_WIDTH, generator=generator), dim=1
    )
    token, clock = tables[TOKEN_GROUP - 1].weight, tables[CLOCK_GROUP - 1].weight
    token[:, NEXT], token[:, CURRENT] = index[:-1], index[torch.arange(ENTRIES) - 1]
    clock[:, CLOCK] = index[:-1]
    clock[TEXT_OVER, CLOCK] = 0.0
    first = talker.model.codec_embedding.weight[talker.config.codec_bos_id]
    first[NEXT], first[CLOCK] = index[-1], index[-1]

    attention = talker.model.layers[0].self_attn
    head = attention.head_dim
    slow = _slow(head)
    match = _orthogonal(len(slow), INDEX_WIDTH, generator)
    for at, source in enumerate((NEXT, CURRENT, NEXT, CURRENT)):
        rows = attention.q_proj.weight[at * head : (at + 1) * head]
        rows.zero_()
        rows[slow, source] = match
    for at in range(2):
        keys = attention.k_proj.weight[at * head : (at + 1) * head]
        keys.zero_()
        keys[slow, CLOCK] = match
    attention.q_norm.weight.fill_(SHARPNESS)
    attention.k_norm.weight.fill_(SHARPNESS)


def leave_room(words: torch.Tensor) -> torch.Tensor:
    """Return word embeddings with free dimensions for `wire_copying`, and a constant dimension."""
    table = words.clone()
    table[:, IDENTITY:] = 0.0
    table[:, CONSTANT] = 1.0
    return table


@torch.no_grad()
def wire_copying(thinker: Any, seed: int) -> None:
    """Make layer 0 store the word before each word, and make layer 1 look up the word that
    followed.
    """
    generator = torch.Generator().manual_seed(seed)
    first, second = (thinker.model.layers[at].self_attn for at in (0, 1))
    head = first.head_dim
    slow, half = _slow(head), head // 2
    compress = _orthogonal(len(slow), IDENTITY, generator)
    _point_one_back(first, head, half)
    values, output = first.v_proj.weight[:head], first.o_proj.weight[:, :head]
    values.zero_()
    values[: len(slow), :IDENTITY] = compress
    output.zero_()
    output[PREVIOUS, : len(slow)] = torch.eye(len(slow))

    for at in range(second.q_proj.weight.shape[0] // head):
        rows = second.q_proj.weight[at * head : (at + 1) * head]
        rows.zero_()
        rows[slow, :IDENTITY] = compress
    carry = _orthogonal(2 * head, IDENTITY, generator)
    for at in range(2):
        keys = second.k_proj.weight[at * head : (at + 1) * head]
        keys.zero_()
        keys[slow, PREVIOUS] = torch.eye(len(slow))
        part = carry[at * head : (at + 1) * head]
        second.v_proj.weight[at * head : (at + 1) * head, :IDENTITY] = part
        for copy in (2 * at, 2 * at + 1):
            second.o_proj.weight[:IDENTITY, copy * head : (copy + 1) * head] = part.T
    for attention in (first, second):
        attention.q_norm.weight.fill_(SHARPNESS)
        attention.k_norm.weight.fill_(SHARPNESS)


def _point_one_back(attention: Any, head: int, half: int) -> None:
    """Make head 0 attend to the previous position, by rotating its query by one step."""
    query, key = attention.q_proj.weight[:head], attention.k_proj.weight[:head]
    query.zero_()
    key.zero_()
    theta = float(attention.config.rope_parameters["rope_theta"])
    for pair in FAST:
        turn = theta ** (-pair / half)
        key[pair, CONSTANT] = 1.0
        query[pair, CONSTANT] = math.cos(turn)
        query[half + pair, CONSTANT] = -math.sin(turn)
