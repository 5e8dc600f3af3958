"""Builds a complete checkpoint from words spoken by espeak-ng, step by step.

The output of each step is stored in a work directory. Completed steps are not repeated, and
interrupted steps are resumed. Code2wav, the talker, the thinker and the audio tower only require
units, recordings and the tokenizer, so they can be trained in parallel. The lessons require the
trained thinker and the trained tower. A part that has already been trained can be taken from a
checkpoint.
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
# The training steps: the parts, the thinker's audio tower, and another training of the thinker.
STEPS = (*PARTS, "tower", "lessons")
RATES = {"tower": 1.5e-3, "lessons": 1e-3}
HEAD_SCALE = 0.3
UNSEEN = 100


@dataclass(frozen=True, slots=True)
class Recipe:
    """The seed, and the number of training steps for each part."""

    seed: int = 0
    code2wav: int = 1650
    talker: int = 3400
    thinker: int = 3100
    tower: int = 5000
    lessons: int = 7000

    def plan(self, part: str) -> Plan:
        """Return the training plan of a part."""
        if part in RATES:
            return Plan(getattr(self, part), RATES[part])
        if part == "code2wav":
            return Plan(self.code2wav, 2e-3, betas=(0.8, 0.95), clip=3.0)
        return Plan(getattr(self, part), 2e-3)


class Workshop:
    """A work directory and its contents.

    Parts that are not trained there are taken from the checkpoint `kept`, if it is set. Raises
    `FailedPrecondition` if the directory was created with a different seed.
    """

    def __init__(self, work: Path, recipe: Recipe, kept: Path | None = None) -> None:
        self._work, self._recipe, self._kept = work, recipe, kept
        work.mkdir(parents=True, exist_ok=True)
        _keep_seed(work / SEED_FILE, recipe.seed)

    @cached_property
    def lexicon(self) -> units.Lexicon:
        """The sound and the codes of every word. They are generated with espeak-ng if necessary."""
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
        """The vocabulary of the tokenizer, whose files are written to the work directory."""
        directory = self._work / "tokenizer"
        directory.mkdir(exist_ok=True)
        return write_tokenizer(directory)

    @cached_property
    def config(self) -> Any:
        """The configuration of the complete model."""
        return make_configuration(self.vocabulary)

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer, loaded from its files as it would be from the checkpoint."""
        from transformers import AutoTokenizer

        assert self.vocabulary.size
        return AutoTokenizer.from_pretrained(self._work / "tokenizer")

    @cached_property
    def words(self) -> torch.Tensor:
        """The word embeddings of the thinker. They are random and are never trained."""
        rows = self.config.thinker_config.text_config.vocab_size
        return leave_room(embed(self.vocabulary, rows, SHAPE.hidden, self._recipe.seed))

    @cached_property
    def recordings(self) -> list[MelRecording]:
        """The training data of the tower. It is generated with espeak-ng if necessary."""
        path = self._work / "recordings.npz"
        if not path.is_file():
            seed = self._recipe.seed
            asked = make_recordings(spoken_questions(), ASKED, seed)
            # With the same seed, the first requests would be spoken in the same way as the first
            # questions.
            requested = make_recordings(function_requests(), REQUESTED, seed + 1)
            save_recordings([*asked, *requested], path)
        return load_recordings(path)

    def train(self, step: str, seconds: float = math.inf) -> bool:
        """Train until the last step of the recipe, but no longer than `seconds`.

        Prints metrics, and returns whether the last step was reached.
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
        """How many answers the talker generates exactly as expected in bfloat16, without teacher
        forcing.

        If the talker is taken from a checkpoint, the counts in its model card are used.
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
        """Return the number of steps and core minutes so far.

        If the thinker is taken from a checkpoint, its previous lessons are included.
        """
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
        """Train the remaining parts and write the checkpoint. Returns its size in bytes."""
        for step in STEPS:
            if self._kept is None or step == "lessons":
                self.train(step)
        return self.adopt(directory)

    def adopt(self, directory: Path) -> int:
        """Write a checkpoint with the current state of all parts. Returns its size in bytes."""
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
        """Return the module that a step trains, in the state before its first step."""
        if step == "lessons":
            module = self._trained("thinker")
            _freeze_all_but_text(module)
            return module
        module = make_part(step, self.config, self._recipe.seed + STEPS.index(step))
        self._prepare(step, module)
        return module

    def _trained(self, part: str) -> Any:
        """Return a part as trained here, or from the checkpoint that is kept."""
        state = self._state(part)
        if state.is_file() or self._kept is None:
            module = self._untrained(part)
            module.load_state_dict(averages(state), strict=False)
            if part == "code2wav":
                code2wav_training.share_rows(module)
            return module
        return self._load_kept(part, self._kept)

    def _load_kept(self, part: str, checkpoint: Path) -> Any:
        """Return a part of the checkpoint that is kept."""
        module = make_part(part, self.config, self._recipe.seed)
        load_part(module, part, checkpoint)
        return module

    def _trained_tower(self) -> Any:
        """Return the audio tower as trained here, or from the checkpoint that is kept."""
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
        """Set initial weights, and freeze the weights that are not trained."""
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
    """Freeze all weights of the thinker except its decoder and its head. Embeddings are frozen
    too.
    """
    thinker.requires_grad_(False)
    thinker.model.requires_grad_(True)
    thinker.lm_head.requires_grad_(True)
    thinker.model.embed_tokens.requires_grad_(False)


def _keep_seed(path: Path, seed: int) -> None:
    """Store the seed of a work directory, or compare it with the stored one."""
    if not path.is_file():
        path.write_text(f"{seed}\n")
    elif int(path.read_text()) != seed:
        raise FailedPrecondition(
            f"{path.parent}: was begun with seed {path.read_text().strip()}, not {seed}; "
            "remove it or take another work directory"
        )


def _check_replaceable(directory: Path) -> None:
    """Raise `FailedPrecondition` if the directory contains something other than a checkpoint."""
    if directory.is_dir() and any(directory.iterdir()) and not (directory / INDEX_FILE).is_file():
        raise FailedPrecondition(
            f"{directory}: contains files that are not a checkpoint; choose another directory"
        )


def _empty(directory: Path) -> None:
    """Create an empty directory for a checkpoint."""
    if directory.is_dir():
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)


def default_work_directory() -> Path:
    """Return the default work directory."""
    return Path(tempfile.gettempdir()) / "antiphon-speaking-checkpoint"
