"""Samples positions from the last hidden states.

A position consists of a text token. If this token stands for a group, the position also contains a
group of frames. The sampled values are stored per slot, because they are the input of the next
position.
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

    `empty_id` is the token that stands for a group of frames. `empty_codes` contains, for each
    channel, the value that indicates that there is no code.
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
        """The last token and the most likely tokens, with their log probabilities, for each slot
        whose segment requests log probabilities.
        """
        # Both tensors are indexed by slot. They contain the position that is the input of the next
        # draw, and the tokens drawn so far.
        empty = torch.tensor(empty_codes, device=self.device)
        self._no_codes = empty.expand(1, self.group, -1)
        self._ids = torch.zeros(slots, dtype=torch.int64, device=self.device)
        self._codes = self._no_codes.repeat(slots, 1, 1)
        self._seen = torch.zeros(slots, self.vocabulary, dtype=torch.bool, device=self.device)

    def begin(self, slot: int, prompt: TaskPrompt) -> None:
        """Prepare the slot for the answer to a prompt."""
        self._ids[slot] = int(prompt.ids[-1])
        self._codes[slot] = on_device(prompt.codes[-1].astype(np.int64), self.device)
        self._seen[slot] = False
        if prompt.known:
            known = on_device(prompt.ids[-prompt.known :], self.device)
            self._seen[slot, known[known != self._empty_id]] = True

    def inputs(self, slots: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the positions that are the input of the next draw in each slot.

        The result consists of int64 token IDs of shape [n], and int64 codes of shape [n, group,
        channels].
        """
        at = on_device(list(slots), self.device)
        return self._ids[at], self._codes[at]

    def draw(self, states: Tensor, draws: Sequence[TextDraw], count: int) -> Tensor:
        """Draw the first `count` positions. The remaining draws only pad the matrix products.

        Returns an int64 tensor of shape [count, 1 + group * channels + 1]. Its columns contain the
        token, the codes, and whether there was a candidate to choose from. The state of the slots
        is only updated at the end, so this method can be called again after an error.
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
        # Groups may follow each other, regardless of the repetition penalty for text.
        self._seen[slots, ids] = ids != self._empty_id
        return torch.cat((ids[:, None], codes.flatten(1), decided[:count, None]), dim=1)

    def _groups(
        self, states: Tensor, spoken: Tensor, draws: Sequence[TextDraw], numbers: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Draw the groups of the positions that are `spoken`.

        Returns int64 codes of shape [n, group, channels], and a boolean tensor of shape [n] that
        states whether the draw had a finite candidate. Positions that are not spoken have no codes.
        """
        count = len(draws)
        if self.device.type != "cpu":
            # Reading `spoken` would take longer than drawing a group for every row and discarding
            # the groups of text positions.
            drawn, finite = self._drawn(states, draws, numbers)
            return torch.where(spoken[:, None, None], drawn, self._no_codes), finite | ~spoken
        codes, decided = self._no_codes.repeat(count, 1, 1), torch.ones_like(spoken)
        if rows := spoken.nonzero()[:, 0].tolist():
            # Use at least as many rows as in other matrix products.
            alike = [*rows, *rows[-1:] * (LEAST_ROWS - len(rows))]
            drawn, finite = self._drawn(
                states[alike], [draws[each] for each in alike], numbers[alike]
            )
            codes[rows], decided[rows] = drawn[: len(rows)], finite[: len(rows)]
        return codes, decided

    def _drawn(
        self, states: Tensor, draws: Sequence[TextDraw], numbers: np.ndarray
    ) -> tuple[Tensor, Tensor]:
        """Draw the groups of these rows and return whether each draw had a finite candidate."""
        return self._predictor.draw(
            states,
            SamplingRows.of([each.text.code_sampling for each in draws], self.device),
            on_device(numbers.reshape(len(draws), self.group, self.channels), self.device),
        )

    def _numbers(self, draws: Sequence[TextDraw]) -> np.ndarray:
        """Return random numbers for the draws, with the number for the text in the first column.

        The result is a float64 array of shape [n, 1 + group * channels]. If both text and codes use
        greedy decoding, the numbers are 0 and are not used.
        """
        drawn = [
            each.text.code_sampling if each.sampling.greedy else each.sampling for each in draws
        ]
        steps = [each.text.number for each in draws]
        return draw_numbers(drawn, steps, 1 + self.group * self.channels)

    def _score(
        self, logits: Tensor, ids: Tensor, draws: Sequence[TextDraw], asked: Sequence[int]
    ) -> None:
        """Store the log probabilities of the tokens for these draws."""
        chosen = ids.tolist()
        scores = score_together(
            [Sampled(logits[at], chosen[at], draws[at].sampling.top_logprobs or 0) for at in asked]
        )
        self.scores |= {draws[at].slot: score for at, score in zip(asked, scores, strict=True)}
