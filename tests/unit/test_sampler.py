import math

import pytest
import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from antiphon.errors import Internal
from antiphon.sampler import choose, keep_likeliest, penalise, uniform
from antiphon.sampling import Sampling

VOCABULARY = 97


def make_sampling(
    temperature: float = 0.9,
    top_k: int = 50,
    top_p: float = 1.0,
    repetition_penalty: float = 1.05,
    seed: int = 1,
) -> Sampling:
    return Sampling(temperature, top_k, top_p, repetition_penalty, seed, 4096)


def hf_scores(
    logits: torch.Tensor, sampling: Sampling, history: torch.Tensor, suppressed: torch.Tensor
) -> torch.Tensor:
    """What `generate` draws from: its processors in the order of `_get_logits_processor`."""
    processors = LogitsProcessorList()
    if sampling.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    processors.append(SuppressTokensLogitsProcessor(suppressed.tolist()))
    if not sampling.greedy:
        if sampling.temperature != 1.0:
            processors.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1.0:
            processors.append(TopPLogitsWarper(sampling.top_p))
    return processors(history[None], logits.to(torch.float32)[None])[0]


CASES = [
    make_sampling(temperature, top_k, top_p, penalty)
    for temperature in (0.3, 1.0, 1.7)
    for top_k in (0, 1, 50, VOCABULARY, 1000)
    for top_p in (1.0, 0.8, 0.01)
    for penalty in (1.0, 1.05, 0.7)
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_scores_equal_hugging_face_when_sampling(dtype: torch.dtype) -> None:
    for index, sampling in enumerate(CASES):
        torch.manual_seed(index)
        logits = (3 * torch.randn(VOCABULARY)).to(dtype)
        history = torch.randint(0, VOCABULARY + 5, (index % 7,))
        suppressed = torch.arange(VOCABULARY - 10, VOCABULARY)
        expected = hf_scores(logits, sampling, history, suppressed)
        scores = penalise(logits, sampling, history=history, suppressed=suppressed)
        ids, kept = keep_likeliest(scores, sampling)
        actual = torch.full((VOCABULARY,), -math.inf).index_copy(0, ids, kept)
        assert torch.equal(actual, expected), sampling


def test_ties_are_all_kept_when_the_last_of_top_k_has_equals() -> None:
    logits = torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 0.0])
    ids, _ = keep_likeliest(logits, make_sampling(top_k=3))
    assert ids.tolist() == [0, 1, 2, 3, 4]


def test_choice_equals_hugging_face_when_greedy() -> None:
    sampling = make_sampling(temperature=0.0)
    plain = 0  # cases in which the penalty changed nothing
    for index in range(200):
        torch.manual_seed(index)
        logits = torch.randn(VOCABULARY)
        best = logits.topk(3).indices
        suppressed, history = best[:1], best[1:2]
        expected = int(hf_scores(logits, sampling, history, suppressed).argmax())
        assert choose(logits, sampling, step=0, history=history, suppressed=suppressed) == expected
        plain += expected == int(best[1])
    assert 0 < plain < 200


def test_draws_follow_the_probabilities_when_many_are_made() -> None:
    torch.manual_seed(0)
    sampling = make_sampling(temperature=1.3, top_k=6, top_p=0.9)
    logits = torch.randn(20)
    draws = 4000
    counts = torch.zeros(20)
    for step in range(draws):
        counts[choose(logits, sampling, step=step)] += 1
    none = torch.empty(0, dtype=torch.int64)
    expected = hf_scores(logits, sampling, none, none).softmax(-1) * draws
    assert not counts[expected == 0].any()
    kept = expected > 0
    chi_squared = ((counts - expected)[kept] ** 2 / expected[kept]).sum()
    assert kept.sum() >= 4
    assert chi_squared < 20.5  # 99.9 % of the distribution with 5 degrees of freedom


def test_draw_is_the_same_when_seed_step_and_group_are() -> None:
    logits = torch.zeros(5000)
    sampling = make_sampling(top_k=0)
    first = choose(logits, sampling, step=3, group=2)
    torch.manual_seed(123)
    assert choose(logits, sampling, step=3, group=2) == first
    others = {
        choose(logits, sampling, step=4, group=2),
        choose(logits, sampling, step=3, group=3),
        choose(logits, sampling, step=2, group=3),
        choose(logits, make_sampling(top_k=0, seed=2), step=3, group=2),
    }
    assert first not in others
    assert len(others) == 4


def test_uniform_is_even_and_uncorrelated_when_keys_are_neighbours() -> None:
    numbers = torch.tensor(
        [[uniform(seed, step, 0) for step in range(500)] for seed in (0, 1, 2, (1 << 64) - 1)]
    )
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert ((numbers.mean(-1) - 0.5).abs() < 0.05).all()
    correlation = torch.corrcoef(torch.cat([numbers, numbers.roll(1, -1)]))
    assert (correlation - torch.eye(8)).abs().max() < 0.2


def test_uniform_has_known_values_when_published() -> None:
    # Changing these changes what every seed of every client sounds like.
    assert uniform(0, 0, 0) == 0.6524484863740321
    assert uniform(7, 1, 2) == 0.902735270840761


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_choice_is_an_error_when_nothing_can_be_chosen(temperature: float, value: float) -> None:
    with pytest.raises(Internal, match="not finite"):
        choose(torch.full((8,), value), make_sampling(temperature), step=0)
