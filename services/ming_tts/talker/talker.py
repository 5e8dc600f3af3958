"""The talker of one Ming TTS checkpoint: what the engine computes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from antiphon.pipelines.ming_tts import HISTORY_LATENTS, LATENT_WIDTH, STEP_LATENTS
from antiphon.transport.device_edge import on_device
from services.lm.attention import Span
from services.lm.decoder import Decoder
from services.lm.frame_decoder import FrameDecoder
from services.ming_tts.talker.aggregator import Aggregator
from services.ming_tts.talker.blocks import affine
from services.ming_tts.talker.flow_head import FlowHead, step_draws
from services.ming_tts.talker.module import MingTalkerModule
from services.ming_tts.talker.prompt import LatentPrompt

FIRST_STOP = 4
"""The first step, from 0, that the stop head may end."""


@dataclass(frozen=True, slots=True)
class LatentDraw:
    """The next latents of the segment in `slot`: its step number `step`, whose row goes to
    `position`, under the key of its draws."""

    slot: int
    position: int
    step: int
    key: int
    temperature: float


@dataclass(frozen=True, slots=True)
class DrawnLatents:
    """`latents` float32 [n, 4, 64], and the `stop` head's two logits [n, 2], of n draws.

    A step is the last one if the second logit is the higher one, from `FIRST_STOP` on.
    """

    latents: Tensor
    stop: Tensor


class MingTalker(FrameDecoder):
    """Forward passes and draws, for `slots` sessions of `context_limit` positions at most.

    Raises `InvalidArgument` when there is no memory for the slots.
    """

    def __init__(self, module: MingTalkerModule, *, context_limit: int, slots: int) -> None:
        stack = module.stack
        decoder = Decoder(stack, context_limit, batch_invariant=True, exact_norms=False)
        super().__init__(decoder, slots, context_limit)
        self._words: Tensor = stack.embed_tokens.weight
        self._speaker, self._stop = affine(module.spk_head), affine(module.stop_head)
        self._flow = FlowHead(module.flow_head)
        self._aggregator = Aggregator(module.linear_proj_audio)
        self._device = self._words.device
        # By slot: the latents before the next step, and the row of that step.
        self._history = self._words.new_zeros(slots, HISTORY_LATENTS, LATENT_WIDTH)
        self._pending = torch.zeros_like(self._words[:1]).repeat(slots, 1)

    def rows(self, prompt: LatentPrompt) -> Tensor:
        """[rows, hidden]: those of a prompt."""
        rows = embedding(on_device(prompt.ids, self._device), self._words)
        if prompt.speaker_row is not None:
            rows[prompt.speaker_row] = 0
            if prompt.speaker is not None:
                speaker = torch.tensor(prompt.speaker).to(rows)
                rows[prompt.speaker_row] = linear(speaker, *self._speaker)
        if len(prompt.latents):
            latents = torch.tensor(prompt.latents).to(rows)
            heard = self._aggregator.rows(latents.view(-1, STEP_LATENTS, LATENT_WIDTH))
            rows[len(rows) - len(heard) :] = heard
        return rows

    def begin(self, slot: int, prompt: LatentPrompt, rows: Tensor) -> None:
        """The slot's segment will speak behind `rows`, those of `prompt`; the last one goes in
        with the first draw."""
        self._history[slot] = 0
        heard = torch.tensor(prompt.latents[-HISTORY_LATENTS:])
        if len(heard):
            self._history[slot, -len(heard) :] = heard.to(self._history)
        self._pending[slot] = rows[-1]

    def prefill(self, slot: int, start: int, rows: Tensor) -> None:
        """Append rows of a prompt to the slot's `start` positions."""
        plan = self._decoder.plan(self.cache, [Span(slot, start, len(rows))])
        self._decoder.append(rows, plan)

    def draw(self, draws: Sequence[LatentDraw]) -> DrawnLatents:
        """The next latents of all of these, in one forward and one flow."""
        spans = [Span(each.slot, each.position) for each in draws]
        order = sorted(range(len(draws)), key=lambda each: self._decoder.order(spans[each]))
        draws = [draws[each] for each in order]
        slots = on_device([each.slot for each in draws], self._device)
        plan = self._decoder.plan(self.cache, [spans[each] for each in order])
        states, _ = self._decoder.append(self._pending[slots], plan)
        states = states[: len(draws)]
        temperatures = [each.temperature for each in draws]
        numbers = [step_draws(each.key, each.step, warm=each.temperature > 0) for each in draws]
        latents = self._flow.solve(states, self._history[slots], numbers, temperatures)
        self._history[slots] = torch.cat((self._history[slots][:, STEP_LATENTS:], latents), 1)
        self._pending[slots] = self._aggregator.rows(latents)
        back = on_device([order.index(each) for each in range(len(order))], self._device)
        return DrawnLatents(latents[back].float(), linear(states, *self._stop)[back].float())
