"""The kernel that draws, interpreted on a CPU, against the sampler: the same ids and scores."""

from __future__ import annotations

import math
import os

import pytest
import torch

from antiphon.values.sampling import Sampling
from antiphon_services.lm.draw_kernel import MOST_IDS, choose_fused
from antiphon_services.lm.sampler import SamplingRows, choose_each

CPU = torch.device("cpu")
ROWS = 5
SAMPLINGS = [
    Sampling(0.9, 0, 1.0, 1.05, 0, 9),
    Sampling(0.0, 5, 0.8, 1.0, 0, 9),
    Sampling(1.0, 50, 0.5, 0.5, 0, 9),
    Sampling(0.7, 1, 0.9, 2.0, 0, 9),
    Sampling(1.3, 40, 0.3, 1.0, 0, 9),
]


@pytest.fixture(autouse=True, scope="module")
def interpreted() -> None:
    assert os.environ.get("TRITON_INTERPRET") == "1", "make test-kernels sets it"


def compare(logits: torch.Tensor, seed: int, *, penalised: bool, suppressed: bool) -> None:
    generator = torch.Generator().manual_seed(seed)
    count, size = logits.shape
    settings = SamplingRows.of(SAMPLINGS[:count], CPU)
    numbers = torch.rand(count, 3, generator=generator, dtype=torch.float64)[:, 1:2]
    given = {
        "seen": torch.rand(count, size, generator=generator) < 0.3 if penalised else None,
        "suppressed": torch.rand(size, generator=generator) < 0.2 if suppressed else None,
    }
    ids, best = choose_fused(logits, settings, numbers, **given)
    wanted_ids, wanted_best = choose_each(logits, settings, numbers, **given)
    assert ids.tolist() == wanted_ids.tolist()
    assert torch.equal(best, wanted_best)


@pytest.mark.parametrize("size", [5, 64, 100])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_ids_are_the_sampler_s(size: int, ties: bool, seed: int) -> None:
    logits = torch.randn(ROWS, size, generator=torch.Generator().manual_seed(100 + seed)) * 3
    logits = logits.round() if ties else logits
    compare(logits, seed, penalised=seed % 2 == 0, suppressed=seed >= 2)


@pytest.mark.parametrize(("size", "likely"), [(4, 4), (6, 6), (6, 4)])
def test_ids_on_the_bounds_of_top_k_top_p_and_the_draw_are_the_sampler_s(
    size: int, likely: int
) -> None:
    """Equal weights have exact sums, so shares and draws fall on the bounds between two ids."""
    scores = torch.full((size,), -1000.0)
    scores[:likely] = 0.0
    asked = [
        (top_k, top_p, number)
        for top_k in (0, 2, size - 1, size + 1)
        for top_p in (1.0, 0.75, 0.5, 0.01)
        for number in (0.0, 0.25, 0.5, 0.75)
    ]
    settings = SamplingRows.of([Sampling(1.0, k, p, 1.0, 0, 9) for k, p, _ in asked], CPU)
    numbers = torch.tensor([[number] for *_, number in asked], dtype=torch.float64)
    logits = scores.expand(len(asked), size)
    ids, _ = choose_fused(logits, settings, numbers)
    wanted, _ = choose_each(logits, settings, numbers)
    assert ids.tolist() == wanted.tolist()
    assert max(wanted.tolist()) == likely - 1


def test_top_k_keeps_as_many_ids_as_it_says() -> None:
    """Scores that are all different, where one id more or less is seen."""
    size, draws = 7, 16
    scores = torch.tensor([0.3, -0.2, 0.1, 0.0, -0.1, 0.2, -0.3])
    numbers = (torch.arange(draws, dtype=torch.float64) / draws)[:, None]
    for top_k in (1, 2, size - 1, size, size + 1):
        settings = SamplingRows.of([Sampling(1.0, top_k, 1.0, 1.0, 0, 9)] * draws, CPU)
        ids, _ = choose_fused(scores.expand(draws, size), settings, numbers)
        assert set(ids.tolist()) == set(scores.topk(min(top_k, size)).indices.tolist())


def test_logits_in_bfloat16_of_as_many_ids_as_are_released() -> None:
    logits = torch.randn(2, 2048, generator=torch.Generator().manual_seed(5)).bfloat16() * 3
    compare(logits, 5, penalised=True, suppressed=True)


def test_zeros_of_both_signs_are_one_score() -> None:
    logits = torch.zeros(ROWS, 16)
    logits[:, ::2] = -0.0
    compare(logits, 6, penalised=False, suppressed=False)


def test_logits_that_leave_nothing_are_reported_with_a_valid_id() -> None:
    logits = torch.randn(4, 20, generator=torch.Generator().manual_seed(7))
    logits[0, 3], logits[1], logits[2, 5] = math.nan, -math.inf, math.inf
    settings = SamplingRows.of(SAMPLINGS[:4], CPU)
    ids, best = choose_fused(logits, settings, torch.full((4, 1), 0.5, dtype=torch.float64))
    assert best.isfinite().tolist() == [False, False, False, True]
    assert all(0 <= each < 20 for each in ids.tolist())


def test_larger_vocabularies_go_to_the_sampler() -> None:
    logits = torch.randn(1, MOST_IDS + 1, generator=torch.Generator().manual_seed(8))
    compare(logits, 8, penalised=False, suppressed=False)
