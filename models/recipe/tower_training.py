"""Trains the audio tower to generate the words of a recording in the thinker's representation.

The tower generates 13 rows per second of audio. The row at the end of each word should contain the
thinker's embedding of that word. All other rows should contain the embedding of the placeholder
`<|audio_pad|>`. Connectionist temporal classification determines the row of each word. This makes
it possible to train the tower and the thinker separately. To the thinker, a recording is a question
whose words are placed among placeholders. Words that do not occur in any question are represented
by an embedding that does not belong to a token.
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
# Determines how certain the tower must be. The embeddings of two words have a distance of about
# seven.
SHARPNESS = 0.35
BLANK = 0
ROWS_OF_SECOND = 13
# Until this step, the loss also includes which word each row belongs to. Otherwise, the tower would
# only generate placeholders for a long time.
GUIDED = 800
PAUSE, UNKNOWN_LENGTH = 1, 8
# The fraction of batches in which a recording without words is included.
WITHOUT_WORDS_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class HeardWords:
    """The words that the tower can generate.

    `ids` contains the token IDs, starting with `BLANK`, and `rows` contains their embeddings, of
    shape [n, hidden]. `lengths` contains the approximate durations of words, measured in letters.
    """

    classes: dict[int, int]
    ids: list[int]
    rows: torch.Tensor
    lengths: list[int]
    unknown: int

    @classmethod
    def of(cls, tokenizer: Any, table: torch.Tensor) -> HeardWords:
        """Return every word of the questions, in the form that it has within a question."""
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
        """Return the classes of the words in a text."""
        found: list[int] = []
        for word in text.split():
            ids = token_ids(tokenizer, word)
            known = [self.classes.get(index) for index in ids]
            found += [self.unknown] if None in known else [c for c in known if c is not None]
        return found


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a text that follows another word."""
    return list(tokenizer(" " + text)["input_ids"])


@torch.no_grad()
def initialise(tower: Any, seed: int) -> None:
    """Initialize weights so that they preserve the signal.

    With the initialization of transformers, the convolutions lose it.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in tower.named_parameters():
        if weight.dim() > 1:
            gain = math.sqrt(2.0) if name.startswith("conv2d") else 1.0
            if name.endswith(("out_proj.weight", "fc2.weight")):
                gain = 0.5
            deviation = gain / math.sqrt(weight[0].numel())
            weight.copy_(deviation * torch.randn(weight.shape, generator=generator))


class TowerLoss:
    """The connectionist temporal classification loss for the content of recordings."""

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
        """Return the loss of a step."""
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
        """Return the loss of the word that each row belongs to, without placeholders."""
        rows, wanted = [], []
        for each, span in zip(logits, spans, strict=True):
            at = [row for row, word in enumerate(span) if word != BLANK and row < len(each)]
            rows.append(each[at, BLANK + 1 :])
            wanted += [span[row] - BLANK - 1 for row in at]
        return F.cross_entropy(torch.cat(rows), torch.tensor(wanted))

    def logits(self, features: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Return the similarity of each recording's rows to each word, with shape [rows,
        classes].
        """
        return [self.nearness(rows) for rows in hear(self._tower, features)]

    def nearness(self, rows: torch.Tensor) -> torch.Tensor:
        """Return half the negative squared distance, without terms that are the same for all
        words.
        """
        words = self.words.rows
        return SHARPNESS * (rows @ words.T - words.square().sum(1) / 2)


def hear(tower: Any, features: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tower's rows for recordings, given features of shape [BANDS, frames]."""
    lengths = torch.tensor([each.shape[1] for each in features])
    rows = tower(torch.cat(list(features), 1), feature_lens=lengths).last_hidden_state
    return list(rows.split([rows_of(int(length)) for length in lengths]))


def rows_of(frames: int) -> int:
    """Return the number of rows that the tower generates for a number of frames."""
    return ROWS_OF_SECOND * (frames // 100) + math.ceil(frames % 100 / 8)


def spread(words: Sequence[int], lengths: Sequence[int], begin: int, frames: int) -> list[int]:
    """Return the approximate word that is spoken in each row, or `BLANK` if there is none.

    The duration of words is proportional to `lengths`.
    """
    rows = [BLANK] * rows_of(begin)
    first, last = begin * ROWS_OF_SECOND / 100, (begin + frames) * ROWS_OF_SECOND / 100
    ends = list(itertools.accumulate(lengths[word] for word in words))
    for row in range(len(rows), int(last) if words else 0):
        said = (row - first + 0.5) / (last - first) * ends[-1]
        rows.append(words[min(len(words) - 1, bisect.bisect_right(ends, said))])
    return rows


def collapse(classes: Sequence[int]) -> list[int]:
    """Return the words that rows represent, without repetitions and placeholders."""
    pairs = zip([BLANK, *classes], classes, strict=False)
    return [each for before, each in pairs if each not in (before, BLANK)]
