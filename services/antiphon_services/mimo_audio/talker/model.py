"""The language model of one checkpoint: what the engine computes with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.transport.device_edge import on_device
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.frame_decoder import FrameDecoder
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.readback import PendingDraw, Readback
from antiphon_services.lm.sampler import SamplingRows, choose_each, uniform_each
from antiphon_services.lm.sampling import Sampled, Score, score_together
from antiphon_services.mimo_audio.talker.frame_predictor import DelayedFramePredictor
from antiphon_services.mimo_audio.talker.group_encoder import GroupEncoder
from antiphon_services.mimo_audio.talker.module import SpeechTextModule
from antiphon_services.mimo_audio.talker.prompt import TaskPrompt
from antiphon_services.mimo_audio.talker.segment import DialogueInput, PositionDraw

TextDraw = FrameDraw[PositionDraw]


class SpeechTextModel(FrameDecoder):
    """Forward passes and draws, for `slots` sessions of `context_limit` positions at most.

    `empty_id` is the id of a position that has a group of frames. Raises `InvalidArgument` when
    there is no memory for the slots.
    """

    def __init__(
        self,
        module: SpeechTextModule,
        encoder: GroupEncoder,
        predictor: DelayedFramePredictor,
        *,
        empty_id: int,
        empty_codes: Sequence[int],
        context_limit: int,
        slots: int,
    ) -> None:
        decoder = Decoder(module.model, context_limit, batch_invariant=True, exact_norms=False)
        super().__init__(decoder, slots, context_limit)
        self.code_sizes = tuple(empty_codes)
        self.vocabulary = len(module.lm_head.weight)
        self.channels, self.group = len(empty_codes), predictor.group
        self._encoder, self._predictor = encoder, predictor
        self._head: Tensor = module.lm_head.weight
        self._device = self._head.device
        self._empty_id = empty_id
        self._readback = Readback(None)
        self.scores: dict[int, Score] = {}
        """By slot, the last id and the likeliest ones with their log probabilities, of segments
        that ask for them."""
        # By slot: the position that goes in with the next draw, and the ids drawn so far.
        empty = torch.tensor(empty_codes, device=self._device)
        self._no_codes = empty.expand(1, self.group, -1)
        self._ids = torch.zeros(slots, dtype=torch.int64, device=self._device)
        self._codes = self._no_codes.repeat(slots, 1, 1)
        self._seen = torch.zeros(slots, len(self._head), dtype=torch.bool, device=self._device)

    def begin(self, slot: int, prompt: TaskPrompt) -> None:
        """The slot's segment will answer this prompt."""
        self._ids[slot] = int(prompt.ids[-1])
        self._codes[slot] = on_device(prompt.codes[-1].astype(np.int64), self._device)
        self._seen[slot] = False
        if prompt.known:
            known = on_device(prompt.ids[-prompt.known :], self._device)
            self._seen[slot, known[known != self._empty_id]] = True

    def step(
        self, parts: Sequence[PromptPart[DialogueInput]], draws: Sequence[TextDraw]
    ) -> list[PendingDraw]:
        """Append the rows of all in one forward; then a position for each of `draws`, in order."""
        arranged = self.arrange(parts, draws)
        ids = [
            on_device(each.prompt.held.ids[each.start : each.stop], self._device) for each in parts
        ]
        codes = [
            on_device(each.prompt.held.codes[each.start : each.stop].astype(np.int64), self._device)
            for each in parts
        ]
        if draws:
            slots = on_device([each.slot for each in arranged.filled], self._device)
            ids.append(self._ids[slots])
            codes.append(self._codes[slots])
        rows = self._encoder.rows(torch.cat(ids), torch.cat(codes))
        states, _ = self._decoder.append(rows, arranged.plan)
        if not draws:
            return []
        start = sum(each.stop - each.start for each in parts)
        filled = states[start : start + len(arranged.filled)]
        drawn = self._draw(filled, arranged.filled, len(draws))
        return self._readback.begin(drawn, arranged.rows_of(draws))

    def _draw(self, states: Tensor, draws: Sequence[TextDraw], count: int) -> Tensor:
        """int64 [count, 1 + group * channels + 1]: ids, codes, and whether there was something to
        choose from, of the first `count` draws; the other draws fill the product up.

        What was drawn is noted last, so that it can be called again after an error.
        """
        samplings = [each.sampling for each in draws]
        numbers = uniform_each(
            [each.seed for each in samplings],
            [each.text.number for each in draws],
            1 + self.group * self.channels,
        )
        slots = on_device([each.slot for each in draws], self._device)
        logits = linear(states, self._head)
        ids, highest = choose_each(
            logits,
            SamplingRows.of(samplings, self._device),
            on_device(numbers[:, :1], self._device),
            seen=self._seen.index_select(0, slots),
        )
        asked = [at for at, each in enumerate(samplings[:count]) if each.top_logprobs is not None]
        decided = highest.isfinite()
        codes = self._no_codes.repeat(len(draws), 1, 1)
        spoken = (ids == self._empty_id).nonzero()[:, 0].tolist()
        if spoken:
            # As many rows as other products have, at least.
            alike = [*spoken, *spoken[-1:] * (self._decoder.least_rows - len(spoken))]
            shape = (len(alike), self.group, self.channels)
            drawn, finite = self._predictor.draw(
                states[alike],
                SamplingRows.of([draws[each].text.code_sampling for each in alike], self._device),
                on_device(numbers[alike, 1:].reshape(shape), self._device),
            )
            codes[spoken] = drawn[: len(spoken)]
            decided[spoken] &= finite[: len(spoken)]
        if asked:
            self._score(logits, ids, draws, asked)
        ids, codes, slots = ids[:count], codes[:count], slots[:count]
        self._ids[slots], self._codes[slots] = ids, codes
        # Groups may follow on each other, whatever the penalty of repeated text.
        self._seen[slots, ids] = ids != self._empty_id
        return torch.cat((ids[:, None], codes.flatten(1), decided[:count, None]), dim=1)

    def _score(
        self, logits: Tensor, ids: Tensor, draws: Sequence[TextDraw], asked: Sequence[int]
    ) -> None:
        """Keep how likely the ids of these draws were."""
        chosen = ids.tolist()
        told = score_together(
            [Sampled(logits[at], chosen[at], draws[at].sampling.top_logprobs or 0) for at in asked]
        )
        self.scores |= {draws[at].slot: score for at, score in zip(asked, told, strict=True)}
