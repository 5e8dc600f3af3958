"""Trains the audio tower to write the words that it hears as the thinker reads words.

The tower makes 13 rows of a second of sound. In the row in which a word ends it is to
write that word's row of the thinker's word table, and in all others that of the
placeholder `<|audio_pad|>`; connectionist temporal classification finds out which row
that is. So tower and thinker can be trained apart: a recording is to the thinker a
question whose words stand among placeholders. Words that no question has are written
as a row of the table that belongs to no token.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from models.recipe.dialogues import CLOSERS, OPENERS
from models.recipe.functions import function_requests
from models.recipe.recordings import (
    MelRecording,
    Surroundings,
    spoken_questions,
)

BATCH = 20
# How sure the tower must be: rows of two words are about seven apart.
SHARPNESS = 0.35
BLANK = 0
ROWS_OF_SECOND = 13
# Until this step, rows are also told about which word they are in: else the tower writes
# placeholders alone for long.
GUIDED = 800
PAUSE, UNKNOWN_LENGTH = 1, 8
# Of the batches: as many have a recording without words.
WITHOUT_WORDS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class HeardWords:
    """What the tower can write: ids by word, `BLANK` first, and the rows [n, hidden].

    `lengths` are about how long the words last, in letters.
    """

    classes: dict[int, int]
    ids: list[int]
    rows: torch.Tensor
    lengths: list[int]
    unknown: int

    @classmethod
    def of(cls, tokenizer: Any, table: torch.Tensor) -> HeardWords:
        """Every word of the questions, as it stands within one."""
        pad = tokenizer.convert_tokens_to_ids("<|audio_pad|>")
        texts = [*spoken_questions(), *function_requests(), *OPENERS, *CLOSERS]
        texts = [" ".join(text.replace(",", "").split()) for text in texts]
        found = sorted({index for text in texts for index in token_ids(tokenizer, text)})
        nobody = len(table) - 1
        ids = [pad, *found, nobody]
        classes = {index: at for at, index in enumerate(ids)}
        lengths = [len(tokenizer.decode([index])) + PAUSE for index in found]
        lengths = [0, *lengths, UNKNOWN_LENGTH]
        return cls(classes, ids, table[ids].clone(), lengths, len(ids) - 1)

    def encode(self, tokenizer: Any, text: str) -> list[int]:
        """The classes of a text's words."""
        found: list[int] = []
        for word in text.split():
            ids = token_ids(tokenizer, word)
            known = [self.classes.get(index) for index in ids]
            found += [self.unknown] if None in known else [c for c in known if c is not None]
        return found


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """A text's ids where it stands after another word."""
    return list(tokenizer(" " + text)["input_ids"])


@torch.no_grad()
def initialise(tower: Any, seed: int) -> None:
    """Weights that pass sound on: those of transformers lose it in the convolutions."""
    generator = torch.Generator().manual_seed(seed)
    for name, weight in tower.named_parameters():
        if weight.dim() > 1:
            gain = math.sqrt(2.0) if name.startswith("conv2d") else 1.0
            if name.endswith(("out_proj.weight", "fc2.weight")):
                gain = 0.5
            deviation = gain / math.sqrt(weight[0].numel())
            weight.copy_(deviation * torch.randn(weight.shape, generator=generator))


class TowerLoss:
    """Connectionist temporal classification of what recordings say."""

    def __init__(
        self,
        tower: Any,
        recordings: Sequence[MelRecording],
        tokenizer: Any,
        table: torch.Tensor,
        seed: int,
    ) -> None:
        self._tower, self._seed = tower, seed
        self._recordings = recordings
        self.words = HeardWords.of(tokenizer, table)
        self._targets = [self.words.encode(tokenizer, each.text) for each in recordings]
        self._around = Surroundings(seed)

    def __call__(self, step: int) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of one step."""
        chance = random.Random(f"{self._seed} {step}")
        drawn = chance.sample(range(len(self._recordings)), BATCH)
        heard = [self._around.add(self._recordings[at], chance) for at in drawn]
        features, begins = [each for each, _ in heard], [begin for _, begin in heard]
        targets = [self._targets[at] for at in drawn]
        frames = [self._recordings[at].power.shape[1] for at in drawn]
        if chance.random() < WITHOUT_WORDS_SHARE:
            features[0], targets[0] = self._around.nothing(chance), []
        logits = self.logits(features)
        loss = F.ctc_loss(
            torch.nn.utils.rnn.pad_sequence(logits).log_softmax(-1),
            torch.tensor([c for target in targets for c in target]),
            torch.tensor([len(each) for each in logits]),
            torch.tensor([len(target) for target in targets]),
            blank=BLANK,
            zero_infinity=True,
        )
        written = [collapse(each.argmax(-1).tolist()) for each in logits]
        right = sum(one == two for one, two in zip(written, targets, strict=True)) / BATCH
        figures = {"ctc": loss.item(), "right": right}
        if step < GUIDED:
            spans = [
                spread(target, self.words.lengths, begin, count)
                for target, begin, count in zip(targets, begins, frames, strict=True)
            ]
            guide = self._guide(logits, spans)
            loss = loss + (1 - step / GUIDED) * guide
            figures["guide"] = guide.item()
        return loss, figures

    def _guide(self, logits: Sequence[torch.Tensor], spans: Sequence[list[int]]) -> torch.Tensor:
        """Which word each row is within, placeholders left aside."""
        rows, wanted = [], []
        for each, span in zip(logits, spans, strict=True):
            at = [row for row, word in enumerate(span) if word != BLANK and row < len(each)]
            rows.append(each[at, BLANK + 1 :])
            wanted += [span[row] - BLANK - 1 for row in at]
        return F.cross_entropy(torch.cat(rows), torch.tensor(wanted))

    def logits(self, features: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """How near each recording's rows are to each word: [rows, classes]."""
        return [self.nearness(rows) for rows in hear(self._tower, features)]

    def nearness(self, rows: torch.Tensor) -> torch.Tensor:
        """Half the negative squared distance, but for what is the same for all words."""
        words = self.words.rows
        return SHARPNESS * (rows @ words.T - words.square().sum(1) / 2)


def hear(tower: Any, features: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The tower's rows of recordings' features [BANDS, frames]."""
    lengths = torch.tensor([each.shape[1] for each in features])
    rows = tower(torch.cat(list(features), 1), feature_lens=lengths).last_hidden_state
    return list(rows.split([rows_of(int(length)) for length in lengths]))


def rows_of(frames: int) -> int:
    """How many rows the tower makes of frames."""
    return ROWS_OF_SECOND * (frames // 100) + math.ceil(frames % 100 / 8)


def spread(words: Sequence[int], lengths: Sequence[int], begin: int, frames: int) -> list[int]:
    """About which word is spoken in each row, if words last as long as `lengths` say.

    `BLANK` for none.
    """
    rows = [BLANK] * rows_of(begin)
    first, last = begin * ROWS_OF_SECOND / 100, (begin + frames) * ROWS_OF_SECOND / 100
    ends = list(itertools.accumulate(lengths[word] for word in words))
    for row in range(len(rows), int(last) if words else 0):
        said = (row - first + 0.5) / (last - first) * ends[-1]
        rows.append(words[min(len(words) - 1, bisect.bisect_right(ends, said))])
    return rows


def collapse(classes: Sequence[int]) -> list[int]:
    """What is written: repetitions count once, placeholders not."""
    pairs = zip([BLANK, *classes], classes, strict=False)
    return [each for before, each in pairs if each not in (before, BLANK)]
