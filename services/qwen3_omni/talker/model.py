"""The talker of one checkpoint: what the engine computes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.errors import FailedPrecondition, ResourceExhausted
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.sampling import Sampling
from antiphon.transport.device_edge import ToDevice, ToHost, on_device
from services.lm.attention import Span
from services.lm.codebooks import CodePredictor
from services.lm.decoder import Decoder
from services.lm.experts import LEAST_ROWS
from services.lm.frames import PromptPart
from services.lm.graphs import Bucketing
from services.lm.kv_cache import KVCache
from services.lm.sampler import SamplingRows, choose_each, uniform_each
from services.lm.slots import Slots
from services.qwen3_omni.talker.prompt import TalkerPrompt
from services.qwen3_omni.talker.readback import Readback
from services.qwen3_omni.talker.rows import RowTable

# The last ids of the vocabulary are control ids, of which only the stop code may be
# drawn: a literal of `Qwen3OmniMoeForConditionalGeneration.generate`.
CONTROL_IDS = 1024

# The code predictor's, when it does not draw greedily: literals of
# `prepare_inputs_for_generation`; the temperature is `generate`'s default.
PREDICTOR_SAMPLING = Sampling(
    temperature=1.0, top_k=50, top_p=0.8, repetition_penalty=1.0, seed=0, max_tokens=1
)


@dataclass(frozen=True, slots=True)
class Draw:
    """Frame `step` of the segment in `slot`, after a row at `position` with `token`'s text."""

    slot: int
    position: int
    token: int
    sampling: Sampling
    step: int

    @property
    def span(self) -> Span:
        """Where the row goes."""
        return Span(self.slot, self.position)


class Talker:
    """Forward passes and draws. `module` is HF's talker for conditional generation.

    `embeddings` [V, thinker hidden] is the thinker's word table, `code_entries` the
    size of code2wav's codebooks. Raises `FailedPrecondition` when the talker could
    draw codes that are in no codebook, has no voice, or there is no memory for `slots`
    segments of `context_limit` positions. `to_device` brings hidden rows, `to_host` frames;
    without the latter each step waits for them. `bucketing` runs what can be a graph.
    """

    def __init__(
        self,
        module: Any,
        embeddings: Tensor,
        special: SpecialIds,
        *,
        code_entries: int,
        context_limit: int,
        slots: int,
        to_device: ToDevice | None = None,
        to_host: ToHost | None = None,
        bucketing: Bucketing | None = None,
    ) -> None:
        self._special = special
        self._head: Tensor = module.codec_head.weight
        rows = max(slots, LEAST_ROWS)
        # First what a frame begins with: see `services.lm.graphs`.
        self._decoder = Decoder(
            module.model,
            context_limit,
            batch_invariant=True,
            exact_norms=False,
            bucketing=bucketing,
            most_rows=rows,
        )
        self.cache = KVCache(self._decoder.shape, slots, context_limit)
        self._slots = Slots(slots)
        self._predictor = CodePredictor(module.code_predictor, rows, PREDICTOR_SAMPLING, bucketing)
        self.groups = self._predictor.groups
        self.rows = RowTable(module, embeddings, to_device)
        self.stop_code = int(module.config.codec_eos_token_id)
        vocabulary = int(module.config.text_config.vocab_size)
        largest = max(vocabulary - CONTROL_IDS, int(module.config.code_predictor_config.vocab_size))
        if largest > code_entries:
            raise FailedPrecondition(
                f"the talker draws codes below {largest}, code2wav knows {code_entries}"
            )
        if not self.rows.voices:
            raise FailedPrecondition("config.json: talker_config.speaker_id has no voice")
        self._device = self._head.device
        self._to_host = to_host or ToHost.direct()
        ids = torch.arange(vocabulary, device=self._device)
        self._suppressed = (ids >= vocabulary - CONTROL_IDS) & (ids != self.stop_code)
        # By slot: first codes drawn so far, and the codec side of the next row.
        self._seen = torch.zeros(slots, vocabulary, dtype=torch.bool, device=self._device)
        self._pending = self.rows.begin.repeat(slots, 1)
        # And how far its positions, behind the prompt, are from its places in the slot.
        self._shifts = [0] * slots

    @property
    def voices(self) -> tuple[str, ...]:
        """Names in lower case, the default first."""
        return self.rows.voices

    def new_prompt(self) -> TalkerPrompt:
        """An empty prompt of this checkpoint's ids and widths."""
        return TalkerPrompt(self._special, self.rows.vocabulary, self.rows.hidden_row_width)

    def take_slot(self) -> int:
        """A slot for a new segment. Raises `ResourceExhausted`."""
        slot = self._slots.take()
        if slot is None:
            raise ResourceExhausted(f"all {self.cache.slots} slots are taken")
        self._seen[slot] = False
        self._pending[slot] = self.rows.begin
        self._shifts[slot] = 0
        return slot

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """The slot's segment is gone; these positions may hold what is not finite."""
        if doubtful:
            self.cache.clear(slot, doubtful.start, doubtful.stop)
        self._slots.free(slot)

    def step(self, chunks: Sequence[PromptPart[TalkerPrompt]], draws: Sequence[Draw]) -> Readback:
        """Append the rows of all in one forward; then a frame for each of `draws`, in order.

        A segment may have its last chunk and its first draw in one step. Nothing in here
        waits for the device where it copies beside its work, both ways, unless its experts
        ask it: see `services.lm.experts`.
        """
        ordered = sorted(draws, key=lambda draw: self._decoder.order(draw.span))
        spans = [*(each.span for each in chunks), *(each.span for each in ordered)]
        plan = self._decoder.plan(self.cache, spans)
        # Products over the frames' rows alone need as many, too.
        filled = [*ordered, *ordered[-1:] * (LEAST_ROWS - len(ordered))]
        rows = [self.rows.prompt(each.prompt, each.start, each.stop, each.voice) for each in chunks]
        if filled:
            rows.append(self._next_rows(filled))
        turned = self._turned(chunks, ordered)
        states, _ = self._decoder.append(torch.cat(rows), plan, turned)
        if not draws:
            return Readback(np.empty((0, self.groups + 1), np.int64), (), None)
        drawn = self._to_host.copy(self._draw(states[-len(filled) :], filled, len(draws)))
        row_of = {draw.slot: row for row, draw in enumerate(ordered)}
        return Readback(drawn, [row_of[draw.slot] for draw in draws], self._to_host.mark())

    def _turned(
        self, chunks: Sequence[PromptPart[TalkerPrompt]], draws: Sequence[Draw]
    ) -> Tensor | None:
        """The positions of all rows as attention turns them; None if they are plain.

        Images and videos take fewer of these than rows, and one along each axis.
        """
        for each in chunks:
            self._shifts[each.slot] = each.prompt.position_shift
        slots = [*(each.slot for each in chunks), *(each.slot for each in draws)]
        if not any(self._shifts[slot] for slot in slots):
            return None
        parts = [each.prompt.positions(each.start, each.stop) for each in chunks]
        shifted = np.array([each.position + self._shifts[each.slot] for each in draws], np.int64)
        parts.append(np.repeat(shifted[:, None], 3, axis=1))
        positions = np.concatenate(parts)
        # Only rows that are seen differ by axis; without any, graphs can run.
        same = (positions == positions[:, :1]).all()
        return on_device(positions[:, 0].copy() if same else positions, self._device)

    def _next_rows(self, draws: Sequence[Draw]) -> Tensor:
        """[n, hidden]: the codes of the frames before, and the text that goes with them."""
        slots = on_device([each.slot for each in draws], self._device)
        tokens = on_device([each.token for each in draws], self._device)
        return self._pending[slots] + self.rows.text(tokens)

    def _draw(self, hidden: Tensor, draws: Sequence[Draw], count: int) -> Tensor:
        """The frames of the first `count` draws, from the last states [n, hidden].

        int64 [count, G + 1]: codes, then whether the logits left something to choose from.
        """
        samplings = [each.sampling for each in draws]
        steps = [each.step for each in draws]
        seeds = [each.seed for each in samplings]
        numbers = on_device(uniform_each(seeds, steps, self.groups), self._device)
        slots = on_device([each.slot for each in draws], self._device)
        settings = SamplingRows.of(samplings, self._device)
        first, likeliest = choose_each(
            linear(hidden, self._head),
            settings,
            numbers[:, :1],
            seen=self._seen[slots],
            suppressed=self._suppressed,
        )
        embedding = self.rows.code(first)
        codes, rows, decided = self._predictor.frames(hidden, first, embedding, settings, numbers)
        self._seen[slots[:count], first[:count]] = True
        self._pending[slots[:count]] = rows[:count]
        decided = decided & likeliest.isfinite()
        # A tensor of its own: `codes` may be where the next step's graph puts its own.
        return torch.cat((codes, decided[:, None]), dim=1)[:count]
