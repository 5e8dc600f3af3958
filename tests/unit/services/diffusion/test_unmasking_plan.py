"""Plans fix every position once, in blocks or by the cosine schedule."""

from __future__ import annotations

from itertools import pairwise

import pytest

from antiphon.errors import InvalidArgument
from antiphon_services.diffusion.unmasking_plan import (
    UnmaskingStep,
    block_steps,
    cosine_steps,
)


def test_blocks_follow_each_other_and_fix_all_their_positions() -> None:
    plan = block_steps(383, 128, 381)
    assert [(each.start, each.stop) for each in plan[::127]] == [(0, 128), (128, 256), (256, 383)]
    assert [each.fixed for each in plan] == [2, *[1] * 126, 2, *[1] * 126, *[1] * 127]


def test_first_steps_of_a_block_fix_one_more_when_steps_do_not_divide_it() -> None:
    assert [each.fixed for each in block_steps(16, 16, 6)] == [3, 3, 3, 3, 2, 2]


def test_steps_without_a_position_are_omitted() -> None:
    assert block_steps(3, 8, 100) == tuple(UnmaskingStep(0, 3, 1) for _ in range(3))


def test_each_block_has_a_step_when_there_are_fewer_steps_than_blocks() -> None:
    assert block_steps(10, 4, 1) == (
        UnmaskingStep(0, 4, 4),
        UnmaskingStep(4, 8, 4),
        UnmaskingStep(8, 10, 2),
    )


def test_cosine_noise_compounds() -> None:
    noise = [each.noise for each in cosine_steps(1024, 18, 1.0)]
    assert [round(each, 4) for each in noise[:4]] == [0.9444, 0.8395, 0.6996, 0.5441]
    assert noise[-1] == 0.0
    assert all(later < earlier for earlier, later in pairwise(noise))


@pytest.mark.parametrize("count", [1, 2, 5, 64])
@pytest.mark.parametrize("steps", [1, 2, 20])
def test_cosine_plan_fixes_all_positions(count: int, steps: int) -> None:
    plan = cosine_steps(count, steps, 0.5)
    assert sum(each.fixed for each in plan) == count
    assert all(each.fixed >= 1 and (each.start, each.stop) == (0, count) for each in plan)
    assert len(plan) == min(steps, count)


@pytest.mark.parametrize("field", ["count", "block", "steps"])
def test_block_plan_rejects_numbers_below_one(field: str) -> None:
    numbers = {"count": 4, "block": 4, "steps": 4} | {field: 0}
    with pytest.raises(InvalidArgument, match=f"{field}: must be at least 1") as raised:
        block_steps(**numbers)
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("field", "count", "steps", "temperature"),
    [
        ("count", 0, 4, 1.0),
        ("steps", 4, 0, 1.0),
        ("temperature", 4, 4, -1.0),
        ("temperature", 4, 4, float("nan")),
    ],
)
def test_cosine_plan_rejects_invalid_settings(
    field: str, count: int, steps: int, temperature: float
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        cosine_steps(count, steps, temperature)
    assert raised.value.field == field
