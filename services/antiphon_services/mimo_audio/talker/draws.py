"""Sample positions from last hidden states: a text id, and a group of frames if the id requires
one.

Sampled values are stored by slot, because they are the input of the next position.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.transport.device_edge import on_device
from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.sampler import SamplingRows, choose_each, draw_numbers
from antiphon_services.lm.sampling import Sampled, Score, score_together
from antiphon_services.mimo_audio.talker.dialogue_segment import PositionDraw
from antiphon_services.mimo_audio.talker.frame_predictor import DelayedFramePredictor
from antiphon_services.mimo_audio.talker.module import SpeechHeads
from antiphon_services.mimo_audio.talker.prompt import TaskPrompt

TextDraw = FrameDraw[PositionDraw]


class PositionDraws:
    """The draws of `slots` sessions.

    `empty_id` is the id of a position that has a group of frames. `empty_codes` has the id of each
    channel that stands for no code.
    """

    def __init__(
        self,
        module: SpeechHeads,
        predictor: DelayedFramePredictor,
        *,
        empty_id: int,
        empty_codes: Sequence[int],
        slots: int,
    ) -> None:
        self.code_sizes = tuple(empty_codes)
        self.channels, self.group = len(empty_codes), predictor.group
        self._predictor = predictor
        self._head: Tensor = module.lm_head.weight
        self.vocabulary = len(self._head)
        self.device, self.dtype = self._head.device, self._head.dtype
        self._empty_id = empty_id
        self.scores: dict[int, Score] = {}
        """By slot, the last id and the likeliest ones with their log probabilities, of segments
        that ask for them."""
        # By slot: the position that goes in with the next draw, and the ids drawn so far.
        empty = torch.tensor(empty_codes, device=self.device)
        self._no_codes = empty.expand(1, self.group, -1)
        self._ids = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self._codes = self._no_codes.repeat(slots, 1, 1)
        self._seen = torch.zeros(slots, self.vocabulary, dtype=torch.bool, device=self.device)

    def begin(self, slot: int, prompt: TaskPrompt) -> None:
        """The slot's segment will answer this prompt."""
        self._ids[slot] = int(prompt.ids[-1])
        self._codes[slot] = on_device(prompt.codes[-1].astype(np.int64), self.device)
        self._seen[slot] = False
        if prompt.known:
            known = on_device(prompt.ids[-prompt.known :], self.device)
            self._seen[slot, known[known != self._empty_id]] = True

    def inputs(self, slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """The position that goes in with the next draw of each slot: ids int64 [n] and codes int64
        [n, group, channels]."""
        at = on_device(list(slots), self.device)
        return self._ids[at], self._codes[at]

    def draw(self, states: Tensor, draws: Sequence[TextDraw], count: int) -> Tensor:
        """int64 [count, 1 + group * channels + 1]: ids, codes, and whether there was something to
        choose from, of the first `count` draws; the other draws fill the product up.

        What was drawn is noted last, so that it can be called again after an error.
        """
        samplings = [each.sampling for each in draws]
        numbers = self._numbers(draws)
        slots = on_device([each.slot for each in draws], self.device)
        logits = linear(states, self._head)
        ids, highest = choose_each(
            logits,
            SamplingRows.of(samplings, self.device),
            on_device(numbers[:, :1], self.device),
            seen=self._seen.index_select(0, slots),
        )
        asked = [at for at, each in enumerate(samplings[:count]) if each.top_logprobs is not None]
        codes, finite = self._groups(states, ids == self._empty_id, draws, numbers[:, 1:])
        decided = highest.isfinite() & finite
        if asked:
            self._score(logits, ids, draws, asked)
        ids, codes, slots = ids[:count], codes[:count], slots[:count]
        self._ids[slots], self._codes[slots] = ids, codes
        # Groups may follow on each other, whatever the penalty of repeated text.
        self._seen[slots, ids] = ids != self._empty_id
        return torch.cat((ids[:, None], codes.flatten(1), decided[:count, None]), dim=1)

    def _groups(
        self, states: Tensor, spoken: Tensor, draws: Sequence[TextDraw], numbers: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """The groups int64 [n, group, channels] of positions that are `spoken`, no codes elsewhere,
        and decided bool [n]."""
        count = len(draws)
        if self.device.type != "cpu":
            # Asking would take longer: every row has a group, which is dropped where it is text.
            drawn, finite = self._drawn(states, draws, numbers)
            return torch.where(spoken[:, None, None], drawn, self._no_codes), finite | ~spoken
        codes, decided = self._no_codes.repeat(count, 1, 1), torch.ones_like(spoken)
        if rows := spoken.nonzero()[:, 0].tolist():
            # As many rows as other products have, at least.
            alike = [*rows, *rows[-1:] * (LEAST_ROWS - len(rows))]
            drawn, finite = self._drawn(
                states[alike], [draws[each] for each in alike], numbers[alike]
            )
            codes[rows], decided[rows] = drawn[: len(rows)], finite[: len(rows)]
        return codes, decided

    def _drawn(
        self, states: Tensor, draws: Sequence[TextDraw], numbers: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Of these rows the groups and whether they are decided."""
        return self._predictor.draw(
            states,
            SamplingRows.of([each.text.code_sampling for each in draws], self.device),
            on_device(numbers.reshape(len(draws), self.group, self.channels), self.device),
        )

    def _numbers(self, draws: Sequence[TextDraw]) -> np.ndarray:
        """Return the random numbers of the draws, float64 [n, 1 + group * channels], with the
        text's first.

        A row with greedy decoding of both has zeros, which are not read.
        """
        drawn = [
            each.text.code_sampling if each.sampling.greedy else each.sampling for each in draws
        ]
        steps = [each.text.number for each in draws]
        return draw_numbers(drawn, steps, 1 + self.group * self.channels)

    def _score(
        self, logits: Tensor, ids: Tensor, draws: Sequence[TextDraw], asked: Sequence[int]
    ) -> None:
        """Keep how likely the ids of these draws were."""
        chosen = ids.tolist()
        scores = score_together(
            [Sampled(logits[at], chosen[at], draws[at].sampling.top_logprobs or 0) for at in asked]
        )
        self.scores |= {draws[at].slot: score for at, score in zip(asked, scores, strict=True)}
