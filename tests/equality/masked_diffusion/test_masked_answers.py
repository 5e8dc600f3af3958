"""Answers by masked diffusion are those of Dynin-Omni's own code, in any company."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
import torch

from antiphon.errors import Internal, InvalidArgument
from antiphon_services.diffusion.masked_answer import DrawnIds, MaskedAnswer
from antiphon_services.diffusion.unmasking_plan import block_steps, cosine_steps
from antiphon_testkit import tiny_llada as tiny
from tests.equality.masked_diffusion.diffusion_cases import (
    CASES,
    COSINE_COUNTS,
    COSINE_STEPS,
    SPEECH,
    TEXT,
    DiffusionCase,
)
from tests.equality.masked_diffusion.diffusion_lab import (
    Lab,
    delivered,
    finish,
    sampled,
    take_step,
)

pytestmark = pytest.mark.equality

BY_NAME = {case.name: case for case in CASES}
TOLERANCE = 1e-4
IN_A_BATCH = 8


def test_rows_with_padding_are_recorded_ones(
    preset: str, lab: Lab, recorded: dict[str, npt.NDArray[np.generic]]
) -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9], [15, 16, 17, 0, 0]])
    seen = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]], dtype=torch.bool)
    logits = lab.model.ff_out(lab.model(ids, seen))
    made = torch.cat((logits[0], logits[1, :3])).numpy()
    np.testing.assert_allclose(made, recorded[f"{preset}/rows"], atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", BY_NAME)
def test_answer_is_the_recorded_one(
    name: str, preset: str, lab: Lab, recorded: dict[str, npt.NDArray[np.generic]]
) -> None:
    answer = lab.answer(BY_NAME[name])
    finish(lab, answer)
    assert delivered(BY_NAME[name], answer.ids) == recorded[f"{preset}/{name}"].tolist()
    assert answer.steps_taken == answer.steps_due


def test_recorded_answers_end_by_themselves_and_at_their_length(
    recorded: dict[str, npt.NDArray[np.generic]],
) -> None:
    """Else the recorded answers compare little."""
    speech = [case for case in CASES if case.kind == SPEECH]
    whole = {
        len(recorded[f"{preset}/{case.name}"]) == case.count
        for preset in tiny.SHAPES
        for case in speech
    }
    assert whole == {True, False}


@pytest.mark.parametrize("order", range(3))
def test_answer_is_the_same_in_a_batch_when_others_come_and_go(
    order: int, preset: str, lab: Lab, recorded: dict[str, npt.NDArray[np.generic]]
) -> None:
    waiting = [(case, lab.answer(case)) for case in CASES]
    random.Random(order).shuffle(waiting)
    running: list[tuple[DiffusionCase, MaskedAnswer]] = []
    arrivals = random.Random(order)
    widest = 0
    while waiting or running:
        while waiting and len(running) < IN_A_BATCH and (not running or arrivals.random() < 0.5):
            running.append(waiting.pop())
        widest = max(widest, len(running))
        take_step(lab, *[answer for _, answer in running])
        for case, answer in [each for each in running if each[1].done]:
            wanted = recorded[f"{preset}/{case.name}"].tolist()
            assert delivered(case, answer.ids) == wanted, case.name
        running = [each for each in running if not each[1].done]
    assert widest == IN_A_BATCH


@pytest.mark.parametrize("name", ["greedy", "drawn-guided", "units"])
def test_finished_block_never_changes(name: str, lab: Lab) -> None:
    answer = lab.answer(BY_NAME[name])
    seen: dict[int, list[int]] = {}
    while not answer.done:
        take_step(lab, answer)
        settled = answer.settled
        assert tiny.MASK not in answer.ids[:settled]
        seen.setdefault(settled, answer.ids[:settled].tolist())
    assert sorted(seen) == [*range(0, len(answer.ids), 16), len(answer.ids)]
    for settled, ids in seen.items():
        assert answer.ids[:settled].tolist() == ids


def test_speech_is_the_recorded_one_when_it_stops_after_the_block_with_its_end(
    preset: str, lab: Lab, recorded: dict[str, npt.NDArray[np.generic]]
) -> None:
    """The vendor's code draws all blocks and cuts; steps of later blocks are saved."""
    saved = 0
    for case in [case for case in CASES if case.kind == SPEECH]:
        answer = lab.answer(case, ends=[tiny.END_OF_AUDIO, tiny.END_OF_TEXT])
        due = answer.steps_due
        finish(lab, answer)
        made = delivered(case, answer.ids[: answer.settled])
        assert made == recorded[f"{preset}/{case.name}"].tolist(), case.name
        assert answer.steps_taken == answer.steps_due
        saved += due - answer.steps_due
    if preset == "grouped":
        assert saved > 0


def test_answer_does_not_end_before_its_block_is_finished(lab: Lab) -> None:
    case = BY_NAME["greedy"]
    whole = lab.answer(case)
    finish(lab, whole)
    ended = lab.answer(case, ends=[int(whole.ids[0])])
    finish(lab, ended)
    assert ended.settled == case.block
    assert ended.steps_taken == case.block
    assert ended.ids[: case.block].tolist() == whole.ids[: case.block].tolist()
    assert ended.ids[case.block :].tolist() == [tiny.MASK] * (case.count - case.block)


def test_image_settles_at_its_last_step(lab: Lab) -> None:
    answer = lab.answer(BY_NAME["image"])
    while not answer.done:
        assert answer.settled == 0
        take_step(lab, answer)
    assert answer.settled == len(answer.ids)


@pytest.mark.parametrize("name", ["drawn", "units", "image"])
def test_answer_is_the_same_when_it_is_started_again(name: str, lab: Lab) -> None:
    """Another replica repeats the answer of a lost one, whose finished blocks the client has."""
    lost, repeated = (lab.answer(BY_NAME[name]) for _ in range(2))
    for _ in range(lost.steps_due * 2 // 3):
        take_step(lab, lost)
    finish(lab, repeated)
    assert repeated.ids[: lost.settled].tolist() == lost.ids[: lost.settled].tolist()
    finish(lab, lost)
    assert repeated.ids.tolist() == lost.ids.tolist()


def test_other_answers_continue_when_one_is_dropped_between_steps(
    preset: str, lab: Lab, recorded: dict[str, npt.NDArray[np.generic]]
) -> None:
    dropped, kept = lab.answer(BY_NAME["greedy"]), lab.answer(BY_NAME["units"])
    for _ in range(5):
        take_step(lab, dropped, kept)
    finish(lab, kept)
    assert delivered(BY_NAME["units"], kept.ids) == recorded[f"{preset}/units"].tolist()
    assert dropped.steps_taken == 5


def test_mask_is_never_drawn(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    head = lab.model.ff_out.weight.clone()
    head[tiny.MASK] = head[7] * 40
    forbidden = lab.drawn[TEXT].forbidden
    monkeypatch.setitem(lab.drawn, TEXT, DrawnIds(head, None, forbidden))
    for name in ("greedy", "drawn"):
        answer = lab.answer(BY_NAME[name])
        finish(lab, answer)
        assert tiny.MASK not in answer.ids


def test_logits_that_are_not_finite_are_an_error(lab: Lab) -> None:
    broken = DrawnIds(torch.full_like(lab.model.ff_out.weight, float("nan")))
    answer = MaskedAnswer([1], block_steps(2, 2, 2), broken, sampled(0.0, 0), mask_id=tiny.MASK)
    with pytest.raises(Internal, match="step 0: the logits are not finite"):
        take_step(lab, answer)


def test_answer_without_positions_is_rejected(lab: Lab) -> None:
    with pytest.raises(InvalidArgument, match="at least one position"):
        MaskedAnswer([1], (), lab.drawn[TEXT], sampled(0.0, 0), mask_id=tiny.MASK)


def test_cosine_schedule_masks_as_many_as_recorded(
    recorded: dict[str, npt.NDArray[np.generic]],
) -> None:
    for steps, of_counts in zip(COSINE_STEPS, recorded["cosine"], strict=True):
        for count, masked in zip(COSINE_COUNTS, of_counts.tolist(), strict=True):
            left, kept = [], count
            for each in cosine_steps(count, steps, 1.0):
                kept -= each.fixed
                left.append(kept)
            # Steps that fix nothing are omitted from a plan.
            distinct = [at for at in dict.fromkeys(masked[: steps - 1]) if at < count]
            assert left == [*distinct, 0], (count, steps)


def test_draws_follow_the_probabilities(lab: Lab) -> None:
    """Of the first step, where every draw is of one distribution for each position."""
    count, seeds = 4, 3000
    plan = block_steps(count, count, 1)
    drawn = lab.drawn[SPEECH]
    made = torch.stack(
        [
            _one_step(lab, MaskedAnswer([3, 4], plan, drawn, sampled(1.5, key), mask_id=tiny.MASK))
            for key in range(seeds)
        ]
    )
    assert drawn.ids is not None
    ids = torch.tensor([[3, 4] + [tiny.MASK] * count])
    rows = lab.model(ids)[0, 2:]
    wanted = ((rows @ drawn.weight.T) / 1.5).softmax(-1)
    for position in range(count):
        share = (made[:, position, None] == drawn.ids).double().mean(0)
        deviation = (wanted[position] * (1 - wanted[position]) / seeds).sqrt()
        assert bool(((share - wanted[position]).abs() <= 5 * deviation + 1 / seeds).all())
    # Draws of two positions are independent.
    first, second = (made[:, at] == made[:, at].mode().values for at in (0, 2))
    both, alone = (first & second).double().mean(), first.double().mean() * second.double().mean()
    assert abs(float(both - alone)) <= 5 * 0.5 / seeds**0.5


def _one_step(lab: Lab, answer: MaskedAnswer) -> torch.Tensor:
    take_step(lab, answer)
    assert answer.done
    return answer.ids
