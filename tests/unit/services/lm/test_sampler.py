import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from antiphon.errors import Internal
from antiphon.values.sampling import Sampling
from antiphon_services.lm import sampler
from antiphon_services.lm.sampler import (
    SamplingRows,
    choose,
    choose_each,
    keep_likeliest,
    penalise,
    uniform_each,
)

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
        # Of equal scores Hugging Face's top_p keeps any, since its sort is not stable.
        assert torch.equal(actual.sort().values, expected.sort().values), sampling
        assert torch.equal(kept, (scores / sampling.temperature)[ids]), sampling
        assert torch.equal(actual, expected) or dtype is torch.bfloat16, sampling


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


def rows_of(samplings: list[Sampling]) -> SamplingRows:
    return SamplingRows.of(samplings, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["greedy", "sampled", "top_k only", "mixed"])
def test_choices_of_rows_equal_those_alone_when_their_settings_differ(
    kind: str, dtype: torch.dtype
) -> None:
    choices = {
        "greedy": [make_sampling(0.0), make_sampling(0.0, repetition_penalty=0.7)],
        "sampled": CASES,
        "top_k only": [case for case in CASES if case.top_p == 1.0 and case.top_k],
        "mixed": [*CASES, make_sampling(0.0), make_sampling(0.0, repetition_penalty=1.0)],
    }[kind]
    for trial in range(8):
        torch.manual_seed(trial)
        samplings = [choices[index] for index in torch.randint(len(choices), (33,)).tolist()]
        logits = (3 * torch.randn(33, VOCABULARY)).to(dtype)
        logits[5] = 1.0  # nothing but ties
        seen = torch.rand(33, VOCABULARY) < 0.1
        suppressed = torch.arange(VOCABULARY - 10, VOCABULARY)
        marked = torch.zeros(VOCABULARY, dtype=torch.bool).index_fill(0, suppressed, value=True)
        steps = torch.randint(1000, (33,)).tolist()
        numbers = uniform_each([each.seed for each in samplings], steps, 3)
        ids, best = choose_each(
            logits,
            rows_of(samplings),
            torch.from_numpy(numbers)[:, 2:],
            seen=seen,
            suppressed=marked,
        )
        assert best.isfinite().all()
        assert ids.tolist() == [
            choose(
                logits[row],
                sampling,
                step=steps[row],
                group=2,
                history=seen[row].nonzero()[:, 0],
                suppressed=suppressed,
            )
            for row, sampling in enumerate(samplings)
        ]


@pytest.mark.parametrize("top_k", [0, 20, VOCABULARY - 1])
@pytest.mark.parametrize("number", [0.0, 1.0 - 2.0**-52])
def test_ids_that_are_removed_are_not_drawn_by_the_outermost_numbers(
    top_k: int, number: float
) -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(1))
    suppressed = torch.zeros(VOCABULARY, dtype=torch.bool)
    suppressed[[0, 1, -2, -1]] = True
    settings = rows_of([make_sampling(top_k=top_k)] * 4)
    numbers = torch.full((4, 1), number, dtype=torch.float64)
    ids, _ = choose_each(logits, settings, numbers, suppressed=suppressed)
    scores = logits.masked_fill(suppressed, -math.inf)
    most = top_k or VOCABULARY
    kept = [row.topk(min(most, VOCABULARY - 4)).indices for row in scores]
    expected = [each.min() if number == 0.0 else each.max() for each in kept]
    assert ids.tolist() == [int(each) for each in expected]


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("top_ks", [[20], [20, 3]])
@pytest.mark.parametrize("top_p", [1.0, 0.8])
def test_choices_of_rows_equal_those_alone_when_few_of_many_ids_are_kept(
    top_p: float, top_ks: list[int], *, ties: bool
) -> None:
    many = 4 * 20 + 1
    for trial in range(8):
        torch.manual_seed(trial)
        samplings = [
            make_sampling(0.7, top_k=top_ks[row % len(top_ks)], top_p=top_p, seed=row)
            for row in range(33)
        ]
        samplings[7] = replace(samplings[7], temperature=0.0)
        logits = 3 * torch.randn(33, many)
        if ties:
            # About ten ids on each value, so that the last kept one has equals in most rows.
            logits = logits.round()
        ids, _ = choose_each(
            logits,
            rows_of(samplings),
            torch.from_numpy(uniform_each(range(33), [trial] * 33, 3))[:, 2:],
        )
        assert ids.tolist() == [
            choose(logits[row], sampling, step=trial, group=2)
            for row, sampling in enumerate(samplings)
        ]


@pytest.mark.parametrize("top_k", [5, 50])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_only_rows_without_a_choice_are_undecided_when_some_are(
    temperature: float, top_k: int
) -> None:
    logits = torch.randn(4, VOCABULARY)
    logits[1] = math.nan
    logits[2] = -math.inf
    settings = rows_of([make_sampling(temperature, top_k=top_k)] * 4)
    ids, best = choose_each(logits, settings, torch.full((4, 1), 0.5, dtype=torch.float64))
    assert best.isfinite().tolist() == [True, False, False, True]
    assert ids.min() >= 0
    assert ids.max() < VOCABULARY


def test_choices_are_the_same_when_only_the_device_knows_who_is_greedy() -> None:
    torch.manual_seed(0)
    sampled = make_sampling(1.0, top_k=7, top_p=0.8)
    logits, numbers = torch.randn(5, VOCABULARY), torch.rand(5, 1, dtype=torch.float64)
    rows = rows_of([sampled] * 9)
    for greedy in ([True] * 5, [False] * 5, [False, True, True, False, True]):
        known = rows_of([make_sampling(0.0) if each else sampled for each in greedy])
        expected, _ = choose_each(logits, known, numbers)
        ids, _ = choose_each(logits, rows.with_greedy(known.greedy), numbers)
        assert ids.tolist() == expected.tolist()


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_choice_is_an_error_when_nothing_can_be_chosen(temperature: float, value: float) -> None:
    with pytest.raises(Internal, match="not finite"):
        choose(torch.full((8,), value), make_sampling(temperature), step=0)


WORDS = 20_000
"""Ids of a vocabulary of words, of which a row's top_k leaves few."""


def lowered(seed: int, dtype: torch.dtype, top_k: list[int]) -> tuple[torch.Tensor, list[Sampling]]:
    torch.manual_seed(seed)
    logits = (3 * torch.randn(len(top_k), WORDS)).to(dtype)
    logits[1] = 1.0  # nothing but ties
    logits[2, :40] = logits[2].max()  # ties above the last, and at it
    choices = zip((0.8, 0.2, 0.5, 1.0, 0.01, 0.95), top_k, strict=True)
    return logits, [make_sampling(0.9, k, p, 1.0, seed=at) for at, (p, k) in enumerate(choices)]


@pytest.mark.parametrize("top_k", [[50] * 6, [50, 20, 30, 1, 64, 7]], ids=["equal", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_choices_among_many_ids_equal_those_alone(dtype: torch.dtype, top_k: list[int]) -> None:
    for trial in range(12):
        logits, samplings = lowered(trial, dtype, top_k)
        numbers = uniform_each([each.seed for each in samplings], [trial] * 6, 1)
        ids, _ = choose_each(logits, rows_of(samplings), torch.from_numpy(numbers))
        alone = [
            choose(row, sampling, step=trial)
            for row, sampling in zip(logits, samplings, strict=True)
        ]
        assert ids.tolist() == alone


@pytest.mark.parametrize("top_k", [[50] * 6, [50, 20, 30, 1, 64, 7]], ids=["equal", "mixed"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_few_are_those_of_a_sort_of_all(
    dtype: torch.dtype, top_k: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for trial in range(12):
        logits, samplings = lowered(trial, dtype, top_k)
        scores, settings = logits.float(), rows_of(samplings)
        largest = scores.amax(-1, keepdim=True)
        few = sampler._weights_of_few(scores, largest, settings)
        monkeypatch.setattr(sampler, "WIDE", WORDS + 1)
        assert torch.equal(few, sampler._kept_weights(scores, largest, settings))
        monkeypatch.undo()


class Sorts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes how wide the rows are that are sorted, and that are summed up in float64."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sorted: list[int] = []
        self.summed: list[int] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        if packet is torch.ops.aten.sort:
            self.sorted.append(args[0].shape[-1])
        if packet is torch.ops.aten.cumsum and args[0].dtype == torch.float64:
            self.summed.append(args[0].shape[-1])
        return func(*args, **kwargs or {})


@torch.no_grad()
def test_gpu_sorts_only_what_top_k_leaves_of_many_ids() -> None:
    device = torch.device("meta")
    samplings = [make_sampling(top_k=50, top_p=0.8, seed=seed) for seed in range(64)]
    logits = torch.zeros(64, 152_064, device=device)
    with Sorts() as sorts:
        choose_each(
            logits,
            SamplingRows.of(samplings, device),
            torch.zeros(64, 1, dtype=torch.float64, device=device),
        )
    assert sorts.sorted
    assert max(sorts.sorted) == 50
    # The draw itself runs over all ids.
    assert sorts.summed.count(152_064) == 1
