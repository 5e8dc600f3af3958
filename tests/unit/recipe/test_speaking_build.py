"""The recipe's steps: what is made is kept, and kept apart from what other settings make."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.weights import INDEX_FILE
from models.recipe import build, code2wav_training, lessons, tower_training
from models.recipe.__main__ import main
from models.recipe.build import PARTS, STEPS, Recipe, Workshop
from models.recipe.recordings import MelRecording, save_recordings
from models.recipe.requests import Request
from models.recipe.training import Loss, TrainingRun
from models.recipe.units import Lexicon, save_lexicon

RECIPE = Recipe(seed=3, code2wav=2, talker=1, thinker=1, tower=1, lessons=1)


def shorten(patch: pytest.MonkeyPatch) -> None:
    """Few frames to train on and few answers to rehearse."""
    patch.setattr(code2wav_training, "STREAM_FRAMES", 60)
    patch.setattr(build, "repertoire_requests", lambda voice: [Request("Who?", "Hello!", voice)])
    patch.setattr(build, "UNSEEN", 2)
    patch.setattr(tower_training, "BATCH", 2)
    patch.setattr(lessons, "HEARD_COUNT", 2)
    patch.setattr(lessons, "NOISES", 1)
    patch.setattr(lessons, "KINDS", (("heard", 2),))


def keep_inputs(work: Path, lexicon: Lexicon) -> None:
    """What espeak-ng would make: words and recordings."""
    work.mkdir(exist_ok=True)
    save_lexicon(lexicon, work / "lexicon.npz")
    power = np.random.default_rng(0).normal(-2, 1, (128, 60)).astype(np.float16)
    recordings = [MelRecording(text, power) for text in ("who are you", "hello", "hi there")]
    save_recordings(recordings, work / "recordings.npz")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, made_up_lexicon: Lexicon) -> tuple[Path, Path]:
    """A work directory and the checkpoint from it, after one step or two of each part."""
    work, directory = tmp_path_factory.mktemp("work"), tmp_path_factory.mktemp("made") / "out"
    keep_inputs(work, made_up_lexicon)
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        Workshop(work, RECIPE).finish(directory)
    return work, directory


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten(monkeypatch)


def contents(directory: Path) -> dict[str, bytes]:
    """The weights of a checkpoint."""
    return {each.name: each.read_bytes() for each in directory.glob("*.safetensors")}


@pytest.mark.usefixtures("short")
def test_second_run_trains_nothing_and_writes_the_same(
    made: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(*_: Any) -> None:
        raise AssertionError("a step that was complete is repeated")

    work, directory = made
    monkeypatch.setattr(TrainingRun, "_step", trained)
    monkeypatch.setattr(build.units, "make_units", trained)
    monkeypatch.setattr(build, "make_recordings", trained)
    Workshop(work, RECIPE).finish(tmp_path / "again")
    assert contents(tmp_path / "again") == contents(directory)


@pytest.mark.usefixtures("short")
def test_stopped_recipe_goes_on_where_it_was(
    made: tuple[Path, Path],
    made_up_lexicon: Lexicon,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped in the midst of a part, it ends with the very weights of a run in one go."""
    work = tmp_path / "work"
    keep_inputs(work, made_up_lexicon)
    train, stepped = TrainingRun.train, []

    def stopped(run: TrainingRun, loss: Loss, *rest: Any) -> bool:
        def stopping(step: int) -> tuple[torch.Tensor, dict[str, float]]:
            if len(stepped) == 1:
                run.save()
                raise KeyboardInterrupt
            stepped.append(step)
            return loss(step)

        return train(run, stopping, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            Workshop(work, RECIPE).finish(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    Workshop(work, RECIPE).finish(tmp_path / "out")
    assert contents(tmp_path / "out") == contents(made[1])


def test_other_seed_does_not_reuse_what_is_there(made: tuple[Path, Path]) -> None:
    with pytest.raises(FailedPrecondition, match="seed 3, not 4"):
        Workshop(made[0], replace(RECIPE, seed=4))


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("part", STEPS)
def test_other_number_of_steps_does_not_reuse_what_is_there(
    made: tuple[Path, Path], part: str
) -> None:
    workshop = Workshop(made[0], replace(RECIPE, **{part: 7}))
    before = (made[0] / f"{part}.safetensors").read_bytes()
    with pytest.raises(FailedPrecondition, match=f"{part}.safetensors: was begun as .*'steps'"):
        workshop.train(part)
    assert (made[0] / f"{part}.safetensors").read_bytes() == before


def test_command_line_names_what_does_not_fit(
    made: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["build", str(tmp_path / "out"), "--work", str(made[0]), "--seed", "5"]
    assert main([*command, "--threads", str(torch.get_num_threads())]) == 1
    assert "seed 3, not 5" in capsys.readouterr().err


def test_checkpoint_is_complete_and_says_how_it_was_made(made: tuple[Path, Path]) -> None:
    directory = made[1]
    card = (directory / "README.md").read_text()
    assert "seed 3" in card
    assert "| code2wav | 2 |" in card
    assert "repertoire: cantor" in card
    prefixes, kinds = set(), set()
    for shard in directory.glob("*.safetensors"):
        with safe_open(shard, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118
                prefixes.add(name.split(".")[0])
                kinds.add(stored.get_slice(name).get_dtype())
    assert prefixes == set(PARTS)
    assert kinds == {"BF16"}
    assert sum(each.stat().st_size for each in directory.iterdir()) <= 25_000_000


def test_hearing_and_thinking_have_files_of_their_own(made: tuple[Path, Path]) -> None:
    """So those of the other parts do not change when these are trained again."""
    where = json.loads((made[1] / INDEX_FILE).read_text())["weight_map"]
    kinds: dict[str, set[str]] = {}
    for name, file in where.items():
        kind = "tower" if name.startswith("thinker.audio_tower.") else name.split(".")[0]
        kinds.setdefault(file, set()).add("speaks" if kind in ("talker", "code2wav") else kind)
    assert all(len(each) == 1 for each in kinds.values())
    assert set(kinds) == {each.name for each in made[1].glob("*.safetensors")}
    assert set.union(*kinds.values()) == {"speaks", "tower", "thinker"}


@pytest.mark.usefixtures("short")
def test_parts_that_are_kept_have_the_weights_of_the_checkpoint(
    made: tuple[Path, Path], made_up_lexicon: Lexicon, tmp_path: Path
) -> None:
    """Lessons are added to those of the thinker; the others stay as they are, byte by byte."""
    work = tmp_path / "work"
    keep_inputs(work, made_up_lexicon)
    Workshop(work, replace(RECIPE, lessons=3), made[1]).finish(tmp_path / "out")
    assert {each.stem for each in work.glob("*.safetensors")} == {"lessons"}
    before, after = contents(made[1]), contents(tmp_path / "out")
    names = sorted(before)
    assert [before[name] == after[name] for name in names] == [True, True, True, False]
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| code2wav | 2 |" in card
    assert "| tower | 1 |" in card
    assert "| lessons | 4 |" in card


@pytest.mark.usefixtures("short")
def test_part_that_was_trained_again_replaces_the_one_that_is_kept(
    made: tuple[Path, Path], made_up_lexicon: Lexicon, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    keep_inputs(work, made_up_lexicon)
    workshop = Workshop(work, replace(RECIPE, tower=2), made[1])
    workshop.train("tower")
    workshop.finish(tmp_path / "out")
    before, after = contents(made[1]), contents(tmp_path / "out")
    names = sorted(before)
    assert [before[name] == after[name] for name in names] == [True, True, False, False]
    assert "| tower | 2 |" in (tmp_path / "out" / "README.md").read_text()


def test_code2wav_hears_no_difference_in_codes_that_say_nothing_about_sound(
    made: tuple[Path, Path], made_up_lexicon: Lexicon
) -> None:
    from models.recipe.asking import load_code2wav

    module = load_code2wav(made[1])
    codes = made_up_lexicon.encode(["the", "red", "fox", "."], 1)
    plain = code2wav_training.sound_codes(codes)
    assert (codes != plain).any()
    one, two = (code2wav_training.decode(module, each) for each in (codes, plain))
    assert (one == two).all()


def test_folder_of_something_else_is_not_emptied(made: tuple[Path, Path], tmp_path: Path) -> None:
    kept = tmp_path / "letter.txt"
    kept.write_text("Dear reader")
    with pytest.raises(FailedPrecondition, match="not a checkpoint"):
        Workshop(made[0], RECIPE).adopt(tmp_path)
    assert os.listdir(tmp_path) == [kept.name]
