"""Repetition-aware sampling against a direct reading of the vendor's rule."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from antiphon.values.sampling import Sampling
from antiphon_services.lm.repetition_aware import RepetitionRule, choose_aware
from antiphon_services.lm.sampler import SamplingRows, uniform_each
from antiphon_testkit.chi_square import chi_square_p

CPU = torch.device("cpu")
RULE = RepetitionRule(10, repeats=1.0)
PLAIN = Sampling(1.0, 25, 0.8, 1.0, seed=0, max_tokens=1)


def choose(
    logits: torch.Tensor, sampling: Sampling, numbers: list[tuple[float, float]], recent: list[int]
) -> list[int]:
    rows = len(numbers)
    ring = torch.full((rows, RULE.window), -1)
    ring[:, : len(recent)] = torch.tensor(recent, dtype=torch.int64)
    ids, _ = choose_aware(
        logits.repeat(rows, 1),
        SamplingRows.of([sampling] * rows, CPU),
        torch.tensor(numbers, dtype=torch.float64),
        ring,
        RULE,
    )
    made: list[int] = ids.tolist()
    return made


def nucleus(logits: torch.Tensor, sampling: Sampling) -> dict[int, float]:
    """The vendor's loop: ids in order of probability while less than top_p was taken."""
    shares = (logits / sampling.temperature).double().softmax(0)
    kept: dict[int, float] = {}
    for id_ in shares.argsort(descending=True, stable=True).tolist():
        if sum(kept.values()) >= sampling.top_p or len(kept) >= sampling.top_k:
            break
        kept[id_] = float(shares[id_])
    return kept


@pytest.mark.parametrize("top_k", [1, 3, 25])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.8, 1.0])
def test_first_draw_is_from_the_nucleus_in_order_of_probability(top_k: int, top_p: float) -> None:
    logits = torch.randn(60, generator=torch.Generator().manual_seed(top_k)) * 2
    sampling = Sampling(1.0, top_k, top_p, 1.0, seed=0, max_tokens=1)
    kept = nucleus(logits, sampling)
    sums = np.cumsum(list(kept.values())) / sum(kept.values())
    numbers = [(float(n), 0.0) for n in np.linspace(0.001, 0.999, 97)]
    expected = [list(kept)[int((sums <= n).sum())] for n, _ in numbers]
    assert choose(logits, sampling, numbers, []) == expected


@pytest.mark.parametrize("top_k", [1, 7, 25, 0])
def test_equal_scores_are_taken_in_the_order_of_ids(top_k: int) -> None:
    """Rounded ones, negative ones and both zeros among them."""
    generator = torch.Generator().manual_seed(top_k)
    logits = (torch.randn(300, generator=generator) * 2).round()
    logits[::7] *= -0.0
    sampling = Sampling(1.0, top_k, 0.9, 1.0, seed=0, max_tokens=1)
    kept = nucleus(logits, replace(sampling, top_k=top_k or len(logits)))
    sums = np.cumsum(list(kept.values())) / sum(kept.values())
    numbers = [(float(n), 0.0) for n in np.linspace(0.001, 0.999, 97)]
    expected = [list(kept)[int((sums <= n).sum())] for n, _ in numbers]
    assert choose(logits, sampling, numbers, []) == expected


def test_repeated_id_is_drawn_again_from_all_others_in_order_of_ids() -> None:
    logits = torch.randn(40, generator=torch.Generator().manual_seed(1))
    (likeliest,) = choose(logits, PLAIN, [(0.0, 0.0)], [])
    shares = logits.double().softmax(0)
    shares[likeliest] = 0
    sums = (shares / shares.sum()).cumsum(0)
    for number in (0.0, 0.3, 0.77, 0.999):
        (id_,) = choose(logits, PLAIN, [(0.0, number)], [3, likeliest])
        assert id_ == int((sums <= number).sum())
        assert id_ != likeliest


def test_greedy_row_takes_the_likeliest_other_id() -> None:
    logits = torch.tensor([0.0, 3.0, 2.0, 1.0])
    greedy = Sampling(0.0, 25, 0.8, 1.0, seed=0, max_tokens=1)
    assert choose(logits, greedy, [(0.99, 0.99)], []) == [1]
    assert choose(logits, greedy, [(0.99, 0.99)], [1]) == [2]


def test_distribution_is_the_vendors() -> None:
    """Whatever is drawn with the numbers that segments have."""
    logits = torch.randn(30, generator=torch.Generator().manual_seed(2)) * 1.5
    recent, count = [int(logits.argmax())], 20_000
    kept = nucleus(logits, PLAIN)
    total = sum(kept.values())
    repeated = kept.pop(recent[0]) / total
    others = logits.double().softmax(0)
    others[recent[0]] = 0
    expected = repeated * (others / others.sum())
    for id_, share in kept.items():
        expected[id_] += share / total
    numbers = uniform_each(list(range(count)), [0] * count, 2)
    drawn = Counter(choose(logits, PLAIN, [tuple(each) for each in numbers], recent))
    counts = [drawn[id_] for id_ in range(30)]
    assert chi_square_p(counts, (expected * count).numpy()) > 1e-4


def test_a_row_without_a_finite_logit_says_so() -> None:
    _, highest = choose_aware(
        torch.full((1, 5), -math.inf),
        SamplingRows.of([PLAIN], CPU),
        torch.zeros(1, 2, dtype=torch.float64),
        torch.full((1, 10), -1),
        RULE,
    )
    assert not highest.isfinite().any()
