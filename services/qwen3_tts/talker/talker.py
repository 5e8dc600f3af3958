"""The talker of one Qwen3-TTS checkpoint: forward passes and draws of any number of sessions.

Draws are counted as the vendor's `generate` counts them: draw n of at most `max_tokens` is the
stop code (never one of the first two), the last one allowed, or frame n-1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.errors import Internal, ResourceExhausted
from antiphon.sampling import Sampling
from antiphon.transport.device_edge import on_device
from services.lm.attention import Span
from services.lm.codebooks import CodePredictor
from services.lm.decoder import Decoder
from services.lm.experts import LEAST_ROWS
from services.lm.kv_cache import KVCache
from services.lm.sampler import SamplingRows, choose_each, uniform_each
from services.lm.slots import Slots
from services.qwen3_tts.talker.module import TalkerModule
from services.qwen3_tts.talker.prompt import Prompt, SpeechIds
from services.qwen3_tts.talker.rows import TtsRowTable

# Literals of the vendor's `generate`: of the last ids of the vocabulary only the stop code may
# be drawn, and that not among the first draws.
CONTROL_IDS = 1024
LEAST_DRAWS = 2

# Defaults of `generate`'s keywords, as far as they are the code predictor's.
PREDICTOR_SAMPLING = Sampling(
    temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1
)


@dataclass(slots=True)
class TtsSpeech:
    """One session: `drawn` counts its draws; it is `over` when no frame will follow."""

    slot: int
    prompt: Prompt
    sampling: Sampling
    drawn: int = 0
    over: bool = False

    @property
    def span(self) -> Span:
        """Where the next row goes."""
        return Span(self.slot, len(self.prompt.text) - 1 + self.drawn)


class TtsTalker:
    """Forward passes and draws; `slots` sessions of `context_limit` positions at most.

    Raises `FailedPrecondition` when there is no memory for them.
    """

    def __init__(
        self, module: TalkerModule, ids: SpeechIds, *, context_limit: int, slots: int
    ) -> None:
        self._ids = ids
        self._head: Tensor = module.codec_head.weight
        self._decoder = Decoder(
            module.model, context_limit, batch_invariant=True, exact_norms=False
        )
        self._cache = KVCache(self._decoder.shape, slots, context_limit)
        self._slots = Slots(slots)
        rows = max(slots, LEAST_ROWS)
        self._predictor = CodePredictor(module.code_predictor, rows, PREDICTOR_SAMPLING)
        self.groups = self._predictor.groups
        self._rows = TtsRowTable(module)
        self._device = self._head.device
        vocabulary, width = self._head.shape
        places = torch.arange(vocabulary, device=self._device)
        self._suppressed = (places >= vocabulary - CONTROL_IDS) & (places != ids.stop)
        self._not_yet = self._suppressed | (places == ids.stop)
        # By slot: first codes drawn so far, and the codec side of the next row.
        self._seen = torch.zeros(slots, vocabulary, dtype=torch.bool, device=self._device)
        self._pending = torch.zeros(slots, width, dtype=self._head.dtype, device=self._device)

    @torch.inference_mode()
    def begin(self, prompt: Prompt, sampling: Sampling) -> TtsSpeech:
        """Take a slot and all of the prompt but its last row. Raises `ResourceExhausted`."""
        slot = self._slots.take()
        if slot is None:
            raise ResourceExhausted(f"all {self._cache.slots} slots are taken")
        codec = self._rows.codec_side(prompt)
        rows = codec + self._rows.text(on_device(prompt.text, self._device))
        plan = self._decoder.plan(self._cache, [Span(slot, 0, len(rows) - 1)])
        self._decoder.append(rows[:-1], plan)
        self._seen[slot] = False
        self._pending[slot] = codec[-1]
        return TtsSpeech(slot, prompt, sampling)

    def end(self, speech: TtsSpeech) -> None:
        """Give the slot back."""
        self._slots.free(speech.slot)

    @torch.inference_mode()
    def draw(self, speeches: Sequence[TtsSpeech]) -> list[Tensor | None]:
        """The next frame of each, int64 [groups], or None for one that is over now.

        Raises `Internal` when the logits leave nothing to choose from.
        """
        ordered = sorted(speeches, key=lambda each: self._decoder.order(each.span))
        # Products of fewer rows have other digits.
        filled = [*ordered, *ordered[-1:] * (LEAST_ROWS - len(ordered))]
        slots = on_device([each.slot for each in filled], self._device)
        text = on_device([self._text(each) for each in filled], self._device)
        rows = self._pending[slots] + self._rows.text(text)
        plan = self._decoder.plan(self._cache, [each.span for each in ordered])
        states, _ = self._decoder.append(rows, plan)
        codes = self._codes(states[: len(filled)], filled, slots, len(ordered)).cpu()
        frames = {}
        for speech, frame in zip(ordered, codes, strict=False):
            speech.drawn += 1
            last = speech.drawn == speech.sampling.max_tokens
            speech.over = last or int(frame[0]) == self._ids.stop
            frames[speech.slot] = None if speech.over else frame
        return [frames[each.slot] for each in speeches]

    def _text(self, speech: TtsSpeech) -> int:
        """The text id of the next row."""
        prompt, step = speech.prompt, speech.drawn - 1
        if step < 0:
            return int(prompt.text[-1])
        return int(prompt.later[step]) if step < len(prompt.later) else self._ids.tts_pad

    def _codes(
        self, states: Tensor, speeches: Sequence[TtsSpeech], slots: Tensor, count: int
    ) -> Tensor:
        """A frame for each of the states [n, hidden], of which the first `count` are kept."""
        samplings = [each.sampling for each in speeches]
        steps = [each.drawn for each in speeches]
        seeds = [each.seed for each in samplings]
        numbers = on_device(uniform_each(seeds, steps, self.groups), self._device)
        settings = SamplingRows.of(samplings, self._device)
        early = on_device([step < LEAST_DRAWS for step in steps], self._device)[:, None]
        first, likeliest = choose_each(
            linear(states, self._head),
            settings,
            numbers[:, :1],
            seen=self._seen[slots],
            suppressed=torch.where(early, self._not_yet, self._suppressed),
        )
        embedding = self._rows.code(first)
        codes, rows, decided = self._predictor.frames(states, first, embedding, settings, numbers)
        if not (decided & likeliest.isfinite()).all():
            raise Internal("the talker's logits are not finite")
        self._seen[slots[:count], first[:count]] = True
        self._pending[slots[:count]] = rows[:count]
        return codes[:count].clone()
