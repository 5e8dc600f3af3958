"""The training loop, the vocabulary and what the thinker is trained on."""

import random
from pathlib import Path

import pytest
import torch

from antiphon.errors import FailedPrecondition
from models.recipe.dialogues import AUDIO, Dialogues
from models.recipe.repertoire import (
    HEARD,
    UNKNOWN,
    UNSPOKEN,
    load_repertoire,
    spoken_words,
)
from models.recipe.training import Plan, TrainingRun
from models.recipe.vocabulary import _learn, _split


def make_run(state: Path, steps: int) -> tuple[torch.nn.Linear, TrainingRun]:
    torch.manual_seed(0)
    module = torch.nn.Linear(3, 2)
    return module, TrainingRun(module, Plan(steps, 1e-2), state)


def train(module: torch.nn.Linear, run: TrainingRun) -> None:
    def loss(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        generator = torch.Generator().manual_seed(step)
        value = module(torch.randn(4, 3, generator=generator)).square().mean()
        return value, {}

    run.train(loss, "test")


def test_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    whole, run = make_run(tmp_path / "whole.safetensors", 12)
    train(whole, run)
    plan = Plan(12, 1e-2)
    torch.manual_seed(0)
    first = torch.nn.Linear(3, 2)
    stopped = TrainingRun(first, plan, tmp_path / "parts.safetensors")

    def interrupted(step: int) -> tuple[torch.Tensor, dict[str, float]]:
        if step == 5:
            raise KeyboardInterrupt
        generator = torch.Generator().manual_seed(step)
        return first(torch.randn(4, 3, generator=generator)).square().mean(), {}

    with pytest.raises(KeyboardInterrupt):
        stopped.train(interrupted, "test")
    stopped.save()
    second = torch.nn.Linear(3, 2)
    resumed = TrainingRun(second, plan, tmp_path / "parts.safetensors")
    assert resumed.step == 5
    train(second, resumed)
    torch.testing.assert_close(second.weight, whole.weight, rtol=0, atol=0)
    torch.testing.assert_close(resumed.average["weight"], run.average["weight"], rtol=0, atol=0)
    assert resumed.figures == run.figures
    assert (
        TrainingRun(torch.nn.Linear(3, 2), plan, tmp_path / "parts.safetensors").figures
        == run.figures
    )


def test_state_of_another_plan_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state.safetensors"
    train(*make_run(state, 3))
    with pytest.raises(FailedPrecondition, match="remove it or take another work directory"):
        make_run(state, 4)


def test_rate_warms_up_stays_and_falls() -> None:
    plan = Plan(1000, 1.0)
    assert plan.rate_at(0) < 0.1
    assert plan.rate_at(500) == 1.0
    assert plan.rate_at(800) == pytest.approx(0.5)
    assert plan.rate_at(999) == pytest.approx(plan.lowest)


def test_each_spelling_is_one_token() -> None:
    spellings = ["the", "he", "then", "Then", "other", "\u0120the", "\u0120other", "hen"]
    vocab, merges = _learn(spellings)
    ranks = {pair: at for at, pair in enumerate(merges)}
    assert [_split(each, ranks) for each in spellings] == [[each] for each in spellings]
    assert set(spellings) <= vocab.keys()


def test_repertoire_is_large_enough_and_unambiguous() -> None:
    exchanges = load_repertoire()
    questions = [question for exchange in exchanges for question in exchange.questions]
    assert len({exchange.answer for exchange in exchanges}) >= 200
    assert len(spoken_words()) >= 1000
    assert len(set(questions)) == len(questions)


def test_dialogues_answer_a_question_in_one_way() -> None:
    """A question never has the answer of a fact at one time and `UNKNOWN` at another."""
    chance, answers = random.Random(0), dict[str, str]()
    dialogues = Dialogues()
    for _ in range(3000):
        turn = dialogues.turn(chance)
        key = turn.asked.lower().rstrip(".!?")
        if AUDIO in key:
            assert turn.answer == HEARD
        elif turn.answer not in (UNSPOKEN, UNKNOWN):
            assert answers.setdefault(key, turn.answer.rstrip("!?.")) == turn.answer.rstrip("!?.")


def test_dialogues_repeat_the_words_that_were_given() -> None:
    chance, dialogues = random.Random(1), Dialogues()
    for _ in range(500):
        turn = dialogues.repeat(chance)
        if turn.answer != UNSPOKEN and turn.asked.lower().startswith("repeat after me: "):
            wanted = turn.asked[len("repeat after me: ") :].rstrip(".!?").lower()
            assert turn.answer.rstrip(".!?").lower() == wanted
