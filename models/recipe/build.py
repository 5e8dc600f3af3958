"""The recipe: from espeak-ng's words to a complete checkpoint, step by step.

Everything that a step makes lies in a work directory; a step that is complete is not
repeated and one that was stopped goes on where it was. Code2wav, talker, thinker and the
audio tower need only units, recordings and the tokenizer, so they can be trained side by
side; the lessons need the trained thinker and tower. A part that was trained before can be taken
from a checkpoint.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.weights import INDEX_FILE
from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe import code2wav_training, units
from models.recipe.assemble import (
    STORED_DTYPE,
    averages,
    load_part,
    write_checkpoint,
)
from models.recipe.card import (
    Training,
    read_exact_answers,
    read_training,
    write_card,
)
from models.recipe.circuits import leave_room, wire_copying, wire_pointer
from models.recipe.codes import VOICES
from models.recipe.functions import function_requests
from models.recipe.lessons import LessonsLoss, listen_to
from models.recipe.model import SHAPE, make_configuration, make_part
from models.recipe.recordings import (
    ASKED,
    REQUESTED,
    MelRecording,
    load_recordings,
    make_recordings,
    save_recordings,
    spoken_questions,
)
from models.recipe.rehearsal import rehearse
from models.recipe.repertoire import (
    HEARD,
    UNKNOWN,
    UNSPOKEN,
    load_repertoire,
    spoken_words,
)
from models.recipe.requests import repeat_requests, repertoire_requests
from models.recipe.talker_training import Script, TalkerLoss
from models.recipe.thinker_training import ThinkerLoss, listen
from models.recipe.tower_training import TowerLoss, initialise
from models.recipe.training import Plan, TrainingRun
from models.recipe.vocabulary import embed, meanings, write_tokenizer

SEED_FILE = "seed.txt"
PARTS = ("code2wav", "talker", "thinker")
# What is trained: the parts, then the thinker's audio tower, and the thinker once more.
STEPS = (*PARTS, "tower", "lessons")
RATES = {"tower": 1.5e-3, "lessons": 1e-3}
HEAD_SCALE = 0.3
UNSEEN = 100


@dataclass(frozen=True, slots=True)
class Recipe:
    """Seed, and how many steps are trained of each."""

    seed: int = 0
    code2wav: int = 1650
    talker: int = 3400
    thinker: int = 3100
    tower: int = 5000
    lessons: int = 7000

    def plan(self, part: str) -> Plan:
        """How a part is trained."""
        if part in RATES:
            return Plan(getattr(self, part), RATES[part])
        if part == "code2wav":
            return Plan(self.code2wav, 2e-3, betas=(0.8, 0.95), clip=3.0)
        return Plan(getattr(self, part), 2e-3)


class Workshop:
    """A work directory and what is made in it.

    What is not trained there is taken from the checkpoint `kept`, if one is given. Raises
    `FailedPrecondition` if the directory holds what was made with another seed.
    """

    def __init__(self, work: Path, recipe: Recipe, kept: Path | None = None) -> None:
        self._work, self._recipe, self._kept = work, recipe, kept
        work.mkdir(parents=True, exist_ok=True)
        _keep_seed(work / SEED_FILE, recipe.seed)

    @cached_property
    def lexicon(self) -> units.Lexicon:
        """Every word's sound and codes; made by espeak-ng if it is not there."""
        path = self._work / "lexicon.npz"
        if not path.is_file():
            made = units.make_lexicon(units.make_units(spoken_words()), self._recipe.seed)
            units.save_lexicon(made, path)
        lexicon = units.load_lexicon(path)
        error = units.quantisation_error(lexicon)
        print(f"units: {len(lexicon.units)}, log-mel lost by the codes {error:.3f} nat")
        return lexicon

    @cached_property
    def vocabulary(self) -> TinyVocabulary:
        """The tokenizer's vocabulary; its files go to the work directory."""
        directory = self._work / "tokenizer"
        directory.mkdir(exist_ok=True)
        return write_tokenizer(directory)

    @cached_property
    def config(self) -> Any:
        """The whole model's configuration."""
        return make_configuration(self.vocabulary)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, as a reader of the checkpoint gets it."""
        from transformers import AutoTokenizer

        assert self.vocabulary.size
        return AutoTokenizer.from_pretrained(self._work / "tokenizer")

    @cached_property
    def words(self) -> torch.Tensor:
        """The thinker's word table, drawn and never trained."""
        rows = self.config.thinker_config.text_config.vocab_size
        return leave_room(embed(self.vocabulary, rows, SHAPE.hidden, self._recipe.seed))

    @cached_property
    def recordings(self) -> list[MelRecording]:
        """What the tower learns from; made by espeak-ng if it is not there."""
        path = self._work / "recordings.npz"
        if not path.is_file():
            seed = self._recipe.seed
            asked = make_recordings(spoken_questions(), ASKED, seed)
            # Another seed, or the first ones would be spoken as the first questions are.
            requested = make_recordings(function_requests(), REQUESTED, seed + 1)
            save_recordings([*asked, *requested], path)
        return load_recordings(path)

    def train(self, step: str, seconds: float = math.inf) -> bool:
        """Train to the recipe's last step, but no longer than `seconds`; whether it is reached.

        Prints its figures.
        """
        module = self._untrained(step)
        loss = getattr(self, f"_{step}_loss")(module)
        run = TrainingRun(module, self._recipe.plan(step), self._state(step))
        complete = run.train(loss, step, seconds)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in run.figures.items())
        print(f"{step}: {run.step} steps in {run.seconds / 60:.1f} core-minutes; {shown}")
        if step == "talker" and complete:
            for title, counts in self.exact_answers.items():
                print(f"talker: spoken exactly, {title}: {counts}")
        return complete

    @cached_property
    def exact_answers(self) -> dict[str, str]:
        """How many answers the talker speaks by itself, in bfloat16, as they should be.

        Those of a talker that is kept were counted when it was trained.
        """
        if self._kept is not None and not self._state("talker").is_file():
            return read_exact_answers(self._kept)
        talker = self._trained("talker")
        loss = self._talker_loss(talker)
        talker.to(STORED_DTYPE).float().eval()
        requests = {
            "repertoire": [r for voice in VOICES for r in repertoire_requests(voice)],
            "unseen sentences": repeat_requests(UNSEEN, self._recipe.seed),
        }
        return {
            title: rehearse(talker, loss, [loss.script.answer(r) for r in asked]).describe()
            for title, asked in requests.items()
        }

    def training(self, step: str) -> Training:
        """Steps and core-minutes so far; lessons count with those of the thinker that is kept."""
        if not self._state(step).is_file() and self._kept is not None:
            return read_training(self._kept, step)
        with safe_open(self._state(step), framework="pt") as stored:
            progress = json.loads(stored.metadata()["progress"])
        steps, minutes = int(progress["step"]), float(progress["seconds"]) / 60
        if step == "lessons" and self._kept is not None:
            before = read_training(self._kept, step)
            return Training(step, before.steps + steps, before.minutes + minutes)
        return Training(step, steps, minutes)

    def finish(self, directory: Path) -> int:
        """Train what is not trained and write the checkpoint; returns its bytes."""
        for step in STEPS:
            if self._kept is None or step == "lessons":
                self.train(step)
        return self.adopt(directory)

    def adopt(self, directory: Path) -> int:
        """Write the checkpoint from what the parts have learned so far; returns its bytes."""
        _check_replaceable(directory)
        parts = {part: self._trained(part) for part in PARTS}
        parts["thinker"].load_state_dict(averages(self._state("lessons")), strict=False)
        parts["thinker"].audio_tower.load_state_dict(self._trained_tower().state_dict())
        trainings, exact = [self.training(step) for step in STEPS], self.exact_answers
        _empty(directory)
        vocabulary = write_tokenizer(directory)
        size = write_checkpoint(directory, vocabulary, parts)
        write_card(directory, self._recipe.seed, trainings, exact)
        return size

    def _untrained(self, step: str) -> Any:
        """The module that a step trains, as it is before its first step."""
        if step == "lessons":
            module = self._trained("thinker")
            _freeze_all_but_text(module)
            return module
        module = make_part(step, self.config, self._recipe.seed + STEPS.index(step))
        self._prepare(step, module)
        return module

    def _trained(self, part: str) -> Any:
        """A part as it was trained here, or in the checkpoint that is kept."""
        state = self._state(part)
        if state.is_file() or self._kept is None:
            module = self._untrained(part)
            module.load_state_dict(averages(state), strict=False)
            if part == "code2wav":
                code2wav_training.share_rows(module)
            return module
        return self._load_kept(part, self._kept)

    def _load_kept(self, part: str, checkpoint: Path) -> Any:
        """A part of the checkpoint that is kept."""
        module = make_part(part, self.config, self._recipe.seed)
        load_part(module, part, checkpoint)
        return module

    def _trained_tower(self) -> Any:
        """The audio tower as it was trained here, or in the checkpoint that is kept."""
        state = self._state("tower")
        if not state.is_file() and self._kept is not None:
            return self._load_kept("thinker", self._kept).audio_tower
        tower = self._untrained("tower")
        tower.load_state_dict(averages(state), strict=False)
        return tower

    def _state(self, part: str) -> Path:
        return self._work / f"{part}.safetensors"

    @torch.no_grad()
    def _prepare(self, part: str, module: Any) -> None:
        """Weights that are set before training, and those that stay as they are."""
        if part == "code2wav":
            code2wav_training.initialise(module, self.lexicon, self._recipe.seed)
        elif part == "talker":
            module.hidden_projection.requires_grad_(False)
            wire_pointer(module, self._recipe.seed)
        elif part == "thinker":
            _freeze_all_but_text(module)
            module.model.embed_tokens.weight.copy_(self.words)
            module.lm_head.weight.copy_(HEAD_SCALE * self.words)
            wire_copying(module, self._recipe.seed)
        elif part == "tower":
            initialise(module, self._recipe.seed)

    def _code2wav_loss(self, module: Any) -> code2wav_training.Code2WavLoss:
        texts = [units.names_of(exchange.answer) for exchange in load_repertoire()]
        return code2wav_training.Code2WavLoss(module, self.lexicon, texts, self._recipe.seed)

    def _talker_loss(self, module: Any) -> TalkerLoss:
        texts = [exchange.answer for exchange in load_repertoire()] + [UNKNOWN, UNSPOKEN, HEARD]
        script = Script(self.lexicon, self.tokenizer, meanings(self.vocabulary), texts)
        return TalkerLoss(self.config, module, self.words, script, self._recipe.seed)

    def _thinker_loss(self, module: Any) -> ThinkerLoss:
        module.eval()
        assert self.tokenizer
        recordings = listen(module, self._work / "tokenizer", self._recipe.seed)
        return ThinkerLoss(module, self.tokenizer, recordings, self._recipe.seed)

    def _tower_loss(self, module: Any) -> TowerLoss:
        return TowerLoss(module, self.recordings, self.tokenizer, self.words, self._recipe.seed)

    def _lessons_loss(self, module: Any) -> LessonsLoss:
        tower = self._trained_tower().eval()
        heard = listen_to(tower, self.recordings, self._recipe.seed)
        return LessonsLoss(module.eval(), self.tokenizer, heard, self._recipe.seed)


def _freeze_all_but_text(thinker: Any) -> None:
    """What the thinker's steps train: its decoder and its head, not the word table."""
    thinker.requires_grad_(False)
    thinker.model.requires_grad_(True)
    thinker.lm_head.requires_grad_(True)
    thinker.model.embed_tokens.requires_grad_(False)


def _keep_seed(path: Path, seed: int) -> None:
    """Note a work directory's seed, or compare it with the noted one."""
    if not path.is_file():
        path.write_text(f"{seed}\n")
    elif int(path.read_text()) != seed:
        raise FailedPrecondition(
            f"{path.parent}: was begun with seed {path.read_text().strip()}, not {seed}; "
            "remove it or take another work directory"
        )


def _check_replaceable(directory: Path) -> None:
    """Raise `FailedPrecondition` where something lies that is no checkpoint."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / INDEX_FILE).is_file():
        raise FailedPrecondition(f"{directory}: holds something that is no checkpoint")


def _empty(directory: Path) -> None:
    """Make way for a checkpoint."""
    if directory.is_dir():
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)


def default_work_directory() -> Path:
    """Where training is kept unless told otherwise."""
    return Path(tempfile.gettempdir()) / "antiphon-speaking-checkpoint"
