from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from antiphon_services.lm import attention_calls
from antiphon_services.lm.attention import AttentionPlan, Span, span_order
from antiphon_services.lm.kv_cache import FIRST_CAPACITY, CacheShape, KVCache

HEADS, KEY_HEADS, DIM = 6, 2, 16


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def _shape(dim: int = DIM) -> CacheShape:
    return CacheShape(2, KEY_HEADS, dim, dim**-0.5, torch.float32, torch.device("cpu"))


def _noisy_cache(slots: int, capacity: int, dim: int = DIM) -> KVCache:
    """Filled with noise, as a used one is."""
    torch.manual_seed(capacity)
    cache = KVCache(_shape(dim), slots, capacity)
    for layer in range(2):
        memory = cache.layer(layer)
        memory.copy_(torch.randn_like(memory))
    return cache


def by_definition(queries: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
    """Softmax attention of [n, heads, d] over [length, key heads, d], in float64."""
    group = queries.shape[1] // keys.shape[1]
    keys, values = (each.double().repeat_interleave(group, 1) for each in (keys, values))
    scores = torch.einsum("nhd,lhd->hnl", queries.double(), keys) * queries.shape[2] ** -0.5
    hidden = torch.ones(scores.shape[1:], dtype=torch.bool).tril(start)
    weights = scores.masked_fill(~hidden, -torch.inf).softmax(-1)
    return torch.einsum("hnl,lhd->nhd", weights, values).flatten(1)


def _noise(count: int, heads: int, dim: int) -> Tensor:
    return torch.randn(count, heads, dim)


@pytest.mark.parametrize(
    ("spans", "dim"),
    [
        ([Span(0, 0, 1)], DIM),
        ([Span(3, 7, 1), Span(0, 0, 1), Span(1, 40, 1)], DIM),
        ([Span(2, 0, 9), Span(1, 5, 4), Span(0, 12, 1), Span(3, 13, 1)], DIM),
        ([Span(0, 254, 1), Span(1, 255, 1), Span(2, 300, 1), Span(3, 511, 1)], DIM),
        ([Span(0, 0, 33), Span(1, 0, 64), Span(2, 0, 40), Span(3, 13, 1)], DIM),
        ([Span(2, 0, 9), Span(1, 0, 9), Span(0, 0, 50), Span(3, 7, 4)], DIM),
        ([Span(0, 600, 1), Span(1, 700, 1), Span(2, 500, 100)], 64),
    ],
)
@pytest.mark.parametrize("batch_invariant", [False, True])
def test_rows_see_their_own_sequence_and_nothing_after_them(
    spans: list[Span], dim: int, batch_invariant: bool
) -> None:
    cache = _noisy_cache(4, 1024, dim)
    ordered = sorted(spans, key=partial(span_order, batch_invariant=batch_invariant))
    plan = AttentionPlan(cache, ordered, batch_invariant=batch_invariant)
    rows = sum(each.count for each in ordered)
    queries, keys, values = (_noise(rows, heads, dim) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    seen = plan.attend(1, queries, torch.cat((keys, values), dim=1)).flatten(1)
    all_keys, all_values = cache.layer(1).chunk(2, dim=2)
    at = 0
    for span in ordered:
        end = at + span.count
        assert plan.positions[at:end].tolist() == list(range(span.start, span.end))
        assert torch.equal(all_keys[span.slot, span.start : span.end], keys[at:end])
        expected = by_definition(
            queries[at:end], all_keys[span.slot, : span.end], all_values[span.slot, : span.end],
            span.start,
        )  # fmt: skip
        torch.testing.assert_close(seen[at:end].double(), expected, atol=1e-5, rtol=1e-5)
        at = end


@pytest.mark.parametrize(
    ("spans", "calls"),
    [
        ([Span(0, 0, 20), Span(1, 0, 32), Span(2, 0, 2)], 1),
        ([Span(0, 0, 32), Span(1, 0, 33)], 2),
        ([Span(0, 0, 20), Span(1, 1, 20)], 2),
        ([Span(0, 0, 150), Span(1, 0, 150)], 2),
    ],
    ids=["alike", "lengths apart", "one goes on", "long"],
)
def test_short_prompts_that_begin_share_a_call_unless_digits_must_not_depend_on_company(
    spans: list[Span], calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[None] = []

    def counted(*given: Tensor, **how: Any) -> Tensor:
        made.append(None)
        return scaled_dot_product_attention(*given, **how)

    monkeypatch.setattr(attention_calls, "scaled_dot_product_attention", counted)
    for batch_invariant, expected in ((False, calls), (True, len(spans))):
        ordered = sorted(spans, key=partial(span_order, batch_invariant=batch_invariant))
        plan = AttentionPlan(_noisy_cache(4, 256), ordered, batch_invariant=batch_invariant)
        queries, memory = (_noise(plan.count, heads, DIM) for heads in (HEADS, 2 * KEY_HEADS))
        made.clear()
        plan.attend(1, queries, memory)
        assert len(made) == expected


def test_cache_keeps_what_it_holds_when_it_grows() -> None:
    cache = KVCache(_shape(), 3, 1000, grows=True)
    assert cache.capacity == 0
    cache.reserve(1)
    assert cache.capacity == FIRST_CAPACITY
    cache.layer(1)[2, 5] = 7.0
    cache.reserve(FIRST_CAPACITY + 1)
    assert cache.capacity == 2 * FIRST_CAPACITY
    cache.reserve(900)
    assert cache.capacity == 1000
    assert (cache.layer(1)[2, 5] == 7.0).all()
    assert cache.layer(0).abs().sum() == 0


def test_cache_copies_and_clears_one_slot() -> None:
    cache = _noisy_cache(3, 32)
    memory = cache.layer(1)
    before = memory.clone()
    cache.copy(0, 2, 5)
    assert torch.equal(memory[2, :5], before[0, :5])
    assert torch.equal(memory[2, 5:], before[2, 5:])
    memory[1] = torch.nan
    cache.clear(1, 4, 6)
    assert memory[1, 4:6].abs().sum() == 0
    assert memory[1, :4].isnan().all()
    assert memory[1, 6:].isnan().all()
    cache.clear(1)
    assert memory[1].abs().sum() == 0
    assert torch.equal(memory[0], before[0])
