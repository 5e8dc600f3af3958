"""The decoder computes what Hugging Face's models of several families do, however rows come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    Qwen2Config,
    Qwen2Model,
    Qwen3Config,
    Qwen3Model,
    Qwen3MoeConfig,
    Qwen3MoeModel,
)

from services.lm.attention import Span
from services.lm.decoder import Decoder
from services.lm.graphs import Bucketing, Eager
from services.lm.kv_cache import KVCache

ROWS, HIDDEN, LAYERS = 30, 48, 3
SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 20,
}
EXPERTS: dict[str, Any] = {
    "head_dim": 16,
    "num_experts": 5,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "decoder_sparse_step": 2,
}


def _make(family: str) -> Any:
    """A model with random weights, biases and norms."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model: Any
    if family == "biases":
        model = Qwen2Model(Qwen2Config(**SHAPE))
    elif family == "normed heads":
        model = Qwen3Model(Qwen3Config(**SHAPE, head_dim=16))
    else:
        model = Qwen3MoeModel(Qwen3MoeConfig(**SHAPE, **EXPERTS, norm_topk_prob=True))
    for parameter in model.parameters():
        parameter.data.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.2)
    return model.eval()


@pytest.mark.parametrize("family", ["biases", "normed heads", "experts"])
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("bucketing", [None, Eager], ids=["plain", "by bucket"])
@torch.inference_mode()
def test_states_equal_hugging_faces_when_rows_come_in_pieces_among_others(
    family: str, batch_invariant: bool, bucketing: Bucketing | None
) -> None:
    model = _make(family)
    decoder = Decoder(
        model,
        ROWS,
        batch_invariant=batch_invariant,
        exact_norms=not batch_invariant,
        bucketing=bucketing,
        most_rows=8,
    )
    cache = KVCache(decoder.shape, 4, ROWS)
    first, second = torch.randn(2, ROWS, HIDDEN)
    expected = {}
    for slot, rows in ((1, first), (3, second)):
        hidden = model(inputs_embeds=rows[None], output_hidden_states=True).hidden_states
        expected[slot] = [layer[0] for layer in hidden]
    start = 0
    for number, count in enumerate([3, 1, 20, 1, 5]):
        tapped_layer = number % (LAYERS + 1)
        spans = sorted([Span(3, start, count), Span(1, start, count)], key=decoder.order)
        rows = torch.cat(
            [(first if each.slot == 1 else second)[start : each.end] for each in spans]
        )
        plan = decoder.plan(cache, spans)
        states, tapped = decoder.append(rows, plan, tapped_layer=tapped_layer)
        for span, part, seen in zip(
            spans, states[: len(rows)].split(count), tapped[: len(rows)].split(count), strict=True
        ):
            for layer, ours in ((LAYERS, part), (tapped_layer, seen)):
                theirs = expected[span.slot][layer][start : span.end]
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        start += count
