"""The talker model of a CosyVoice3 checkpoint, which performs forward passes and sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from antiphon.pipelines.cosyvoice3 import FIRST, SPEECH_IDS
from antiphon.transport.device_edge import on_device
from antiphon_services.cosyvoice3.talker.module import SpeechTalkerModule
from antiphon_services.cosyvoice3.talker.prompt import FILL, SOS
from antiphon_services.cosyvoice3.talker.speech_segment import DrawPlace, UtteranceTexts
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.frame_decoder import FrameDecoder
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.readback import PendingDraw, Readback
from antiphon_services.lm.repetition_aware import NUMBERS, RepetitionRule, choose_aware
from antiphon_services.lm.sampler import SamplingRows, draw_numbers


class SpeechTalker(FrameDecoder):
    """Performs forward passes and sampling for up to `slots` sessions of `context_limit` positions.

    `readback` copies codes to the host asynchronously. If it is not set, each step waits for its
    codes. Raises `InvalidArgument` if the slots do not fit in memory.
    """

    code_sizes = (FIRST + SPEECH_IDS,)

    def __init__(
        self,
        module: SpeechTalkerModule,
        rule: RepetitionRule,
        *,
        context_limit: int,
        slots: int,
        readback: Readback | None = None,
    ) -> None:
        stack = module.stack
        decoder = Decoder(stack, context_limit, batch_invariant=True, exact_norms=False)
        super().__init__(decoder, slots, context_limit)
        self._words: Tensor = stack.embed_tokens.weight
        self._codes: Tensor = module.speech_embedding.weight
        self.head: Tensor = module.llm_decoder.weight
        self._device = self.head.device
        self._rule = rule
        self._readback = readback or Readback(None)
        # Both tensors are indexed by slot. `_recent` contains the last token IDs as a ring buffer,
        # and `_pending` contains the row of the next draw.
        self._recent = torch.full((slots, rule.window), -1, device=self._device)
        self._pending = torch.zeros_like(self._codes[:1]).repeat(slots, 1)

    def begin(self, slot: int, prompt: UtteranceTexts) -> None:
        """Prepare the slot for draws after the current prompt.

        In all turns except the first one, the previous token is set to `FILL`, even if another
        token was sampled.
        """
        current, window = prompt.current, self._rule.window
        self._pending[slot] = self._rows(prompt, prompt.rows - 1, prompt.rows)[0]
        if not current.drawn:
            self._recent[slot] = -1
        else:
            self._recent[slot, (current.drawn + current.forced - 1) % window] = FILL

    def step(
        self, parts: Sequence[PromptPart[UtteranceTexts]], draws: Sequence[FrameDraw[DrawPlace]]
    ) -> list[PendingDraw]:
        """Append all rows in one forward pass.

        Returns a pending code for each of the `draws`, in the same order.
        """
        arranged = self.arrange([each.prompt.placed(each) for each in parts], draws)
        rows = [self._rows(each.prompt, each.start, each.stop) for each in parts]
        if draws:
            slots = on_device([each.slot for each in arranged.filled], self._device)
            rows.append(self._pending[slots])
        states, _ = self._decoder.append(torch.cat(rows), arranged.plan)
        if not draws:
            return []
        start = sum(each.stop - each.start for each in parts)
        filled = states[start : start + len(arranged.filled)]
        drawn = self._draw(filled, arranged.filled, len(draws))
        return self._readback.begin(drawn, arranged.rows_of(draws))

    def _rows(self, prompt: UtteranceTexts, start: int, stop: int) -> Tensor:
        """Return rows of the current prompt, as a tensor of shape [stop - start, hidden]."""
        current = prompt.current
        start, stop = start - current.first, stop - current.first
        ids = on_device(current.ids[start:stop], self._device)
        speech = on_device(current.speech[start:stop], self._device)
        words = embedding(ids.masked_fill(speech, 0), self._words)
        codes = embedding(ids.masked_fill(~speech, 0), self._codes)
        return torch.where(speech[:, None], codes, words)

    def _draw(self, states: Tensor, draws: Sequence[FrameDraw[DrawPlace]], count: int) -> Tensor:
        """Sample a code for each of the first `count` draws. The remaining draws only pad the
        batch.

        Returns an int64 tensor of shape [count, 2]. Its second column states whether there was a
        finite candidate.
        """
        slots = on_device([each.slot for each in draws], self._device)
        samplings = [each.sampling for each in draws]
        numbers = draw_numbers(samplings, [each.text.number for each in draws], NUMBERS)
        logits = linear(states, self.head)
        early = on_device([each.text.early for each in draws], self._device)
        logits[:, SOS].masked_fill_(early, -math.inf)
        if any(each.text.continues for each in draws):
            continues = on_device([each.text.continues for each in draws], self._device)
            logits[:, SPEECH_IDS:].masked_fill_(continues[:, None], -math.inf)
        chosen, highest = choose_aware(
            logits,
            SamplingRows.of(samplings, self._device),
            on_device(numbers, self._device),
            self._recent[slots],
            self._rule,
        )
        kept, slots = chosen[:count], slots[:count]
        places = on_device(
            [each.text.place % self._rule.window for each in draws[:count]], self._device
        )
        self._recent[slots, places] = kept
        self._pending[slots] = embedding(kept, self._codes)
        return torch.stack((kept, highest[:count].isfinite().to(kept.dtype)), 1)
