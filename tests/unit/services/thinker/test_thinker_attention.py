from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from thinker_conversations import AUDIO, TEXT
from thinker_reference import Reference
from torch import Tensor

from services.thinker.attention import AttentionPlan, Span, span_order
from services.thinker.key_values import FIRST_CAPACITY, KeyValues, KeyValueShape

HEADS, KEY_HEADS, DIM = 6, 2, 16


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def _key_values(slots: int, capacity: int, dim: int = DIM) -> KeyValues:
    """Filled with noise, as a used one is."""
    torch.manual_seed(capacity)
    shape = KeyValueShape(2, KEY_HEADS, dim, torch.float32, torch.device("cpu"))
    key_values = KeyValues(shape, slots, capacity)
    key_values.reserve(capacity)
    for layer in range(2):
        for tensor in key_values.layer(layer):
            tensor.copy_(torch.randn_like(tensor))
    return key_values


def _by_definition(queries: Tensor, keys: Tensor, values: Tensor, start: int) -> Tensor:
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
        ([Span(0, 600, 1), Span(1, 700, 1), Span(2, 500, 100)], 64),
    ],
)
def test_rows_see_their_own_sequence_and_nothing_after_them(spans: list[Span], dim: int) -> None:
    key_values = _key_values(4, 1024, dim)
    ordered = sorted(spans, key=span_order)
    plan = AttentionPlan(ordered, key_values)
    rows = sum(each.count for each in ordered)
    queries, keys, values = (_noise(rows, heads, dim) for heads in (HEADS, KEY_HEADS, KEY_HEADS))
    seen = plan.attend(1, queries, keys, values)
    all_keys, all_values = key_values.layer(1)
    at = 0
    for span in ordered:
        end = at + span.count
        assert plan.positions[at:end].tolist() == list(range(span.start, span.end))
        assert torch.equal(all_keys[span.slot, span.start : span.end], keys[at:end])
        expected = _by_definition(
            queries[at:end], all_keys[span.slot, : span.end], all_values[span.slot, : span.end],
            span.start,
        )  # fmt: skip
        torch.testing.assert_close(seen[at:end].double(), expected, atol=1e-5, rtol=1e-5)
        at = end


def test_key_values_keep_what_they_hold_when_they_grow() -> None:
    shape = KeyValueShape(2, KEY_HEADS, DIM, torch.float32, torch.device("cpu"))
    key_values = KeyValues(shape, 3, 1000)
    assert key_values.capacity == 0
    key_values.reserve(1)
    assert key_values.capacity == FIRST_CAPACITY
    key_values.layer(1)[0][2, 5] = 7.0
    key_values.reserve(FIRST_CAPACITY + 1)
    assert key_values.capacity == 2 * FIRST_CAPACITY
    key_values.reserve(900)
    assert key_values.capacity == 1000
    assert (key_values.layer(1)[0][2, 5] == 7.0).all()
    assert key_values.layer(0)[1].abs().sum() == 0


def test_key_values_copy_and_clear_one_slot() -> None:
    key_values = _key_values(3, 32)
    keys, values = key_values.layer(1)
    before = keys.clone()
    key_values.copy(0, 2, 5)
    assert torch.equal(keys[2, :5], before[0, :5])
    assert torch.equal(keys[2, 5:], before[2, 5:])
    values[1] = torch.nan
    key_values.clear(1)
    assert values[1].abs().sum() == 0
    assert torch.equal(keys[0], before[0])


def test_positions_are_plain_when_there_is_text_and_audio(reference: Reference) -> None:
    thinker: Any = reference._thinker
    for spoken_to in (*TEXT[:2], *AUDIO):
        inputs = reference.inputs(spoken_to)
        mask = inputs.get("feature_attention_mask")
        positions, delta = thinker.get_rope_index(
            inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            audio_seqlens=None if mask is None else mask.sum(-1),
        )
        length = inputs["input_ids"].shape[1]
        assert torch.equal(positions[:, 0], torch.arange(length).expand(3, -1).to(positions.dtype))
        assert delta.abs().max() == 0
