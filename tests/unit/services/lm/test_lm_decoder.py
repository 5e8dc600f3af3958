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

from antiphon_services.lm.attention import Span
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.graphs import Bucketing, Eager
from antiphon_services.lm.kv_cache import KVCache

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


@pytest.mark.parametrize("family", ["biases", "normed heads", "experts"])
@torch.inference_mode()
def test_last_rows_alone_have_the_states_that_they_have_among_all(family: str) -> None:
    decoder = Decoder(_make(family), ROWS, batch_invariant=False, exact_norms=True)
    spans = [Span(4, 0, 7), Span(2, 0, 12), Span(3, 5, 3), Span(1, 20), Span(0, 9)]
    spans.sort(key=decoder.order)
    rows = torch.randn(sum(each.count for each in spans), HIDDEN)
    ends = torch.tensor([each.count for each in spans]).cumsum(0) - 1
    for asked in ([True] * 5, [True, False, True, True, False], [False] * 5):
        caches = [KVCache(decoder.shape, 5, ROWS) for _ in range(2)]
        plans = [decoder.plan(cache, spans) for cache in caches]
        states, tapped = decoder.append(rows, plans[0], tapped_layer=2)
        last = decoder.last_rows(caches[1], spans, asked, tapped_layer=2)
        assert last is not None
        alone, tapped_too = decoder.append_last(rows, plans[1], None, last, tapped_layer=2)
        torch.testing.assert_close(alone, states[ends[torch.tensor(asked)]], rtol=1e-4, atol=1e-4)
        assert torch.equal(tapped_too, tapped)
        for layer in range(LAYERS):
            assert torch.equal(caches[0].layer(layer), caches[1].layer(layer))


@torch.inference_mode()
def test_all_rows_go_through_the_last_layer_where_all_are_needed_or_each_is_a_last_one() -> None:
    decoder = Decoder(_make("biases"), ROWS, batch_invariant=False, exact_norms=True)
    cache = KVCache(decoder.shape, 2, ROWS)
    prompt, ids = [Span(0, 0, 4)], [Span(0, 4), Span(1, 3)]
    assert decoder.last_rows(cache, prompt, [True], tapped_layer=LAYERS - 1) is not None
    assert decoder.last_rows(cache, prompt, [True], tapped_layer=LAYERS) is None
    assert decoder.last_rows(cache, ids, [True, True], tapped_layer=LAYERS - 1) is None
