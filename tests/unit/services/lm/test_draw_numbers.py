"""The numbers that all draws come from: no two of them are one, and none tells of another."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.qwen2_5_omni import PIPELINE as QWEN2_5_OMNI
from antiphon.pipelines.qwen3_omni import PIPELINE as QWEN3_OMNI
from antiphon.pipelines.qwen3_tts import PIPELINE as QWEN3_TTS
from antiphon.values.sampling import Sampling, stream_key
from antiphon_services.lm import sampler
from antiphon_services.lm.sampler import draw_numbers, uniform, uniform_each
from antiphon_testkit.chi_square import chi_square_p
from antiphon_testkit.stage_settings import stage_settings

Numbers = npt.NDArray[np.float64]

PIPELINES = (QWEN3_OMNI, QWEN2_5_OMNI, QWEN3_TTS)
DEFAULTS = Sampling(0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, seed=0, max_tokens=9)
GOLDEN = 0x9E3779B97F4A7C15
"""What SplitMix64 adds to its state in a step."""
WORDS = 1 << 64


def key_of(pipeline: Pipeline, role: str, seed: int, choice: int = 0) -> int:
    """What the engine of a stage gets as its seed."""
    return stage_settings(pipeline, role, DEFAULTS, seed, choice=choice).sampling.seed


def keys_of(pipeline: Pipeline, seeds: Sequence[int], choices: int) -> list[int]:
    """Those of all stages and choices."""
    roles = [stage.role for stage in pipeline.stages]
    return [
        key_of(pipeline, role, seed, choice)
        for role, seed, choice in product(roles, seeds, range(choices))
    ]


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda each: each.name)
@pytest.mark.parametrize("seed", [0, 7, 1 << 63])
def test_no_two_draws_share_a_number_when_seeds_are_chosen_for_it(
    pipeline: Pipeline, seed: int
) -> None:
    near = [0, 1, 2, GOLDEN, 2 * GOLDEN, -GOLDEN, -1, 1 << 32, 1 << 52, 1 << 63]
    seeds = [(seed + each) % WORDS for each in near]
    keys = keys_of(pipeline, seeds, choices=3)
    steps, groups = 200, 16
    numbers = uniform_each(np.repeat(keys, steps).tolist(), [*range(steps)] * len(keys), groups)
    assert numbers.size == len(pipeline.stages) * len(seeds) * 3 * steps * groups
    assert len(np.unique(numbers)) == numbers.size


def test_no_two_draws_share_a_number_when_they_are_far_along() -> None:
    keys = keys_of(QWEN3_OMNI, [0, 1], choices=2)
    steps = [0, 1, 255, 256, 65_535, 65_536, (1 << 31) - 1]
    numbers = uniform_each(np.repeat(keys, len(steps)).tolist(), steps * len(keys), 64)
    assert len(np.unique(numbers)) == numbers.size


@pytest.mark.parametrize("pipeline", PIPELINES, ids=lambda each: each.name)
def test_draws_of_a_request_are_independent_of_each_other_over_seeds(pipeline: Pipeline) -> None:
    """Every pair of stages, steps, groups and choices, over seeds that are consecutive."""
    seeds, bins = 8192, 8
    draws = [
        (stage.role, choice, step, group)
        for stage in pipeline.stages
        for choice, step, group in product((0, 1), (0, 1, 4), (0, 1, 3))
    ]
    keys = {
        (stage.role, choice): [key_of(pipeline, stage.role, seed, choice) for seed in range(seeds)]
        for stage in pipeline.stages
        for choice in (0, 1)
    }
    numbers = {
        (role, choice, step): uniform_each(keys[role, choice], [step] * seeds, 4)
        for role, choice, step, _ in draws
    }
    columns = [numbers[role, choice, step][:, group] for role, choice, step, group in draws]
    check_spread(columns, bins)
    assert smallest_p_of_pairs(columns, bins) > 1e-7


def test_steps_of_a_stage_are_independent_of_each_other_and_of_another_stages() -> None:
    """Within one request, over its steps: each at the same step, and some apart."""
    steps, apart, bins = 8192, 3, 8
    keys = keys_of(QWEN3_OMNI, [5], choices=2)
    drawn = [uniform_each([key] * (steps + apart), range(steps + apart), 2) for key in keys]
    columns = [
        each[first : first + steps, group]
        for each in drawn
        for group in (0, 1)
        for first in range(apart)
    ]
    check_spread(columns, bins)
    assert smallest_p_of_pairs(columns, bins) > 1e-7


def check_spread(columns: Sequence[Numbers], bins: int) -> None:
    """All are in [0, 1), as evenly as chance has it."""
    for each in columns:
        assert 0 <= each.min() <= each.max() < 1
        counts = np.bincount((each * bins).astype(int), minlength=bins)
        assert chi_square_p(counts, np.full(bins, len(each) / bins)) > 1e-5


def smallest_p_of_pairs(columns: Sequence[Numbers], bins: int) -> float:
    """The least likely of the joint counts of two columns, if they were independent."""
    cells = [(each * bins).astype(int) for each in columns]
    expected = np.full(bins * bins, len(columns[0]) / bins**2)
    return min(
        chi_square_p(np.bincount(first * bins + second, minlength=bins * bins), expected)
        for first, second in combinations(cells, 2)
    )


def test_number_is_the_word_of_a_hash_that_anybody_can_compute() -> None:
    """Another way to change how every seed of every client sounds is to change these."""
    named = (9).to_bytes(8, "little") + (2).to_bytes(4, "little") + b"talker"
    key = hashlib.blake2b(named, digest_size=16, person=b"antiphon.draws").digest()
    assert stream_key(9, "talker", 2) == int.from_bytes(key, "little")
    words = hashlib.shake_128(key + (5).to_bytes(8, "little")).digest(8 * 4)
    expected = int.from_bytes(words[24:], "little") >> 12
    assert uniform(stream_key(9, "talker", 2), 5, 3) == expected / (1 << 52)
    assert uniform(stream_key(0, "thinker"), 0, 0) == 0.3848542422420129
    assert uniform(stream_key(7, "talker", 1), 1, 2) == 0.08936571688231298


def test_numbers_of_many_are_those_of_each_alone() -> None:
    keys, steps = [0, (1 << 128) - 1, 5], [3, 0, 1 << 40]
    numbers = uniform_each(keys, steps, 30)
    assert numbers.shape == (3, 30)
    for row, (key, step) in enumerate(zip(keys, steps, strict=True)):
        assert numbers[row].tolist() == [uniform(key, step, group) for group in range(30)]
    assert uniform_each(keys, steps, 2).tolist() == numbers[:, :2].tolist()
    assert uniform_each([], [], 4).shape == (0, 4)


def test_rows_that_draw_have_their_numbers_whoever_is_greedy_beside_them() -> None:
    drawn = [replace(DEFAULTS, seed=seed) for seed in (0, 5, (1 << 128) - 1)]
    greedy = replace(DEFAULTS, seed=5, temperature=0.0)
    numbers = draw_numbers([greedy, *drawn[:2], greedy, drawn[2]], [9, 3, 0, 3, 1 << 40], 3)
    expected = uniform_each([each.seed for each in drawn], [3, 0, 1 << 40], 3)
    assert numbers[[1, 2, 4]].tolist() == expected.tolist()
    assert numbers[[0, 3]].tolist() == [[0.0] * 3] * 2
    assert draw_numbers(drawn, [3, 0, 1 << 40], 3).tolist() == expected.tolist()


def test_greedy_rows_are_not_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[bytes] = []

    def recorded(data: bytes) -> Any:
        hashed.append(data)
        return hashlib.shake_128(data)

    monkeypatch.setattr(sampler, "shake_128", recorded)
    greedy = replace(DEFAULTS, temperature=0.0)
    assert draw_numbers([greedy] * 4, range(4), 2).shape == (4, 2)
    assert not hashed
    draw_numbers([greedy, DEFAULTS, greedy], range(3), 2)
    assert len(hashed) == 1


@pytest.mark.parametrize(
    ("first", "second"),
    [((1, "talker", 0), (1, "thinker", 0)), ((1, "talker", 0), (1, "talker", 1)),
     ((1, "talker", 0), (2, "talker", 0)), ((1, "1talker", 0), (1, "talker", 1)),
     ((0, "", 1), (1, "", 0)), ((0, "", 1 << 31), (1 << 31, "", 0)),
     ((0, "a", 0), (0, "a\0", 0))],
)  # fmt: skip
def test_keys_differ_where_anything_differs(
    first: tuple[int, str, int], second: tuple[int, str, int]
) -> None:
    assert stream_key(*first) != stream_key(*second)
    assert stream_key(*first) == stream_key(*first)
