"""The recipe: from espeak-ng's words to a complete checkpoint, step by step.

Everything that a step makes lies in a work directory; a step that is complete is not
repeated and one that was stopped goes on where it was. Code2wav, talker and thinker
need only the units and the tokenizer, so they can be trained side by side.
"""

from __future__ import annotations

import json
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
from antiphon.testing.tiny_tokenizer import TinyVocabulary
from tools.speaking_checkpoint import code2wav_training, units
from tools.speaking_checkpoint.assemble import STORED_DTYPE, averages, write_checkpoint
from tools.speaking_checkpoint.card import Training, write_card
from tools.speaking_checkpoint.circuits import leave_room, wire_copying, wire_pointer
from tools.speaking_checkpoint.codes import VOICES
from tools.speaking_checkpoint.model import SHAPE, make_configuration, make_part
from tools.speaking_checkpoint.rehearsal import rehearse
from tools.speaking_checkpoint.repertoire import (
    HEARD,
    UNKNOWN,
    UNSPOKEN,
    load_repertoire,
    spoken_words,
)
from tools.speaking_checkpoint.requests import repeat_requests, repertoire_requests
from tools.speaking_checkpoint.talker_training import Script, TalkerLoss
from tools.speaking_checkpoint.thinker_training import ThinkerLoss, listen
from tools.speaking_checkpoint.training import Plan, TrainingRun
from tools.speaking_checkpoint.vocabulary import embed, meanings, write_tokenizer

SEED_FILE = "seed.txt"
PARTS = ("code2wav", "talker", "thinker")
HEAD_SCALE = 0.3
UNSEEN = 100


@dataclass(frozen=True, slots=True)
class Recipe:
    """Seed and steps of each part."""

    seed: int = 0
    code2wav: int = 1650
    talker: int = 3400
    thinker: int = 3100

    def plan(self, part: str) -> Plan:
        """How a part is trained."""
        if part == "code2wav":
            return Plan(self.code2wav, 2e-3, betas=(0.8, 0.95), clip=3.0)
        return Plan(getattr(self, part), 2e-3)


class Workshop:
    """A work directory and what is made in it.

    Raises `FailedPrecondition` if it holds what was made with another seed.
    """

    def __init__(self, work: Path, recipe: Recipe) -> None:
        self._work, self._recipe = work, recipe
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

    def train(self, part: str) -> None:
        """Train a part to the recipe's last step; prints its figures."""
        module = make_part(part, self.config, self._recipe.seed + PARTS.index(part))
        loss = getattr(self, f"_{part}_loss")(module)
        run = TrainingRun(module, self._recipe.plan(part), self._state(part))
        run.train(loss, part)
        shown = ", ".join(f"{name} {value:.3f}" for name, value in run.figures.items())
        print(f"{part}: {run.step} steps in {run.seconds / 60:.1f} core-minutes; {shown}")
        if part == "talker":
            for title, counts in self.exact_answers.items():
                print(f"talker: spoken exactly, {title}: {counts}")

    @cached_property
    def exact_answers(self) -> dict[str, str]:
        """How many answers the talker speaks by itself, in bfloat16, as they should be."""
        talker = make_part("talker", self.config, self._recipe.seed)
        loss = self._talker_loss(talker)
        talker.load_state_dict(averages(self._state("talker")), strict=False)
        talker.to(STORED_DTYPE).float().eval()
        requests = {
            "repertoire": [r for voice in VOICES for r in repertoire_requests(voice)],
            "unseen sentences": repeat_requests(UNSEEN, self._recipe.seed),
        }
        return {
            title: rehearse(talker, loss, [loss.script.answer(r) for r in asked]).describe()
            for title, asked in requests.items()
        }

    def training(self, part: str) -> Training:
        """Steps and core-minutes of a part so far."""
        with safe_open(self._state(part), framework="pt") as stored:
            progress = json.loads(stored.metadata()["progress"])
        return Training(part, int(progress["step"]), float(progress["seconds"]) / 60)

    def finish(self, directory: Path) -> int:
        """Train what is not trained and write the checkpoint; returns its bytes."""
        for part in PARTS:
            self.train(part)
        return self.adopt(directory)

    def adopt(self, directory: Path) -> int:
        """Write the checkpoint from what the parts have learned so far; returns its bytes."""
        _empty(directory)
        parts = {}
        for at, part in enumerate(PARTS):
            module = make_part(part, self.config, self._recipe.seed + at)
            self._prepare(part, module)
            module.load_state_dict(averages(self._state(part)), strict=False)
            parts[part] = module
        code2wav_training.share_rows(parts["code2wav"])
        vocabulary = write_tokenizer(directory)
        size = write_checkpoint(directory, vocabulary, parts)
        write_card(
            directory,
            self._recipe.seed,
            [self.training(part) for part in PARTS],
            self.exact_answers,
        )
        return size

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
        else:
            module.requires_grad_(False)
            module.model.requires_grad_(True)
            module.lm_head.requires_grad_(True)
            module.model.embed_tokens.requires_grad_(False)
            module.model.embed_tokens.weight.copy_(self.words)
            module.lm_head.weight.copy_(HEAD_SCALE * self.words)
            wire_copying(module, self._recipe.seed)

    def _code2wav_loss(self, module: Any) -> code2wav_training.Code2WavLoss:
        self._prepare("code2wav", module)
        texts = [units.names_of(exchange.answer) for exchange in load_repertoire()]
        return code2wav_training.Code2WavLoss(module, self.lexicon, texts, self._recipe.seed)

    def _talker_loss(self, module: Any) -> TalkerLoss:
        self._prepare("talker", module)
        texts = [exchange.answer for exchange in load_repertoire()] + [UNKNOWN, UNSPOKEN, HEARD]
        script = Script(self.lexicon, self.tokenizer, meanings(self.vocabulary), texts)
        return TalkerLoss(self.config, module, self.words, script, self._recipe.seed)

    def _thinker_loss(self, module: Any) -> ThinkerLoss:
        self._prepare("thinker", module.eval())
        assert self.tokenizer
        recordings = listen(module, self._work / "tokenizer", self._recipe.seed)
        return ThinkerLoss(module, self.tokenizer, recordings, self._recipe.seed)


def _keep_seed(path: Path, seed: int) -> None:
    """Note a work directory's seed, or compare it with the noted one."""
    if not path.is_file():
        path.write_text(f"{seed}\n")
    elif int(path.read_text()) != seed:
        raise FailedPrecondition(
            f"{path.parent}: was begun with seed {path.read_text().strip()}, not {seed}; "
            "remove it or take another work directory"
        )


def _empty(directory: Path) -> None:
    """Make way for a checkpoint; raises `FailedPrecondition` where something else lies."""
    if directory.is_dir() and any(directory.iterdir()):
        if not (directory / INDEX_FILE).is_file():
            raise FailedPrecondition(f"{directory}: holds something that is no checkpoint")
        shutil.rmtree(directory)
    directory.mkdir(parents=True, exist_ok=True)


def default_work_directory() -> Path:
    """Where training is kept unless told otherwise."""
    return Path(tempfile.gettempdir()) / "antiphon-speaking-checkpoint"
