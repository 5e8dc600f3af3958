"""The talker of one Qwen3-TTS checkpoint: what the engine computes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.errors import FailedPrecondition, ResourceExhausted
from antiphon.sampling import Sampling
from antiphon.transport.device_edge import on_device
from services.lm.attention import Span
from services.lm.codebooks import CodePredictor
from services.lm.decoder import Decoder
from services.lm.experts import LEAST_ROWS
from services.lm.frames import PromptPart
from services.lm.graphs import Bucketing
from services.lm.kv_cache import KVCache
from services.lm.sampler import SamplingRows, choose_each, uniform_each
from services.lm.slots import Slots
from services.qwen3_tts.talker.module import TalkerModule
from services.qwen3_tts.talker.prompt import Prompt, SpeechIds
from services.qwen3_tts.talker.rows import TtsRowTable
from services.qwen3_tts.talker.segment import SpokenText

# Literals of the vendor's `generate`: of the last ids of the vocabulary only the stop code may
# be drawn, and that not among the first draws.
CONTROL_IDS = 1024
LEAST_DRAWS = 2


@dataclass(frozen=True, slots=True)
class TtsDraw:
    """Draw `step` of the segment in `slot`, after a row at `position` with the id `text`, which
    is None for padding."""

    slot: int
    position: int
    text: int | None
    sampling: Sampling
    step: int

    @property
    def span(self) -> Span:
        """Where the row goes."""
        return Span(self.slot, self.position)


@dataclass(frozen=True, slots=True)
class TtsTurn:
    """What a segment does in a step: parts of its prompt in order, and a draw behind them."""

    parts: Sequence[PromptPart[SpokenText]]
    draw: TtsDraw | None


@dataclass(frozen=True, slots=True)
class TtsFrame:
    """A frame's codes uint16 [1, G]; the first may be the stop code, out of which no frame
    follows. `decided` is False when the logits left nothing to choose from."""

    codes: npt.NDArray[np.uint16]
    decided: bool


class TtsTalker:
    """Forward passes and draws; `slots` sessions of `context_limit` positions at most.

    `code_entries` is the size of the codec's books, `predictor` how later groups are drawn where
    first codes are not greedy. Raises `FailedPrecondition` when there is no memory for the
    slots, or codes could be drawn that the codec does not have. `bucketing` runs what can be a
    graph.
    """

    def __init__(
        self,
        module: TalkerModule,
        ids: SpeechIds,
        predictor: Sampling,
        *,
        code_entries: int,
        context_limit: int,
        slots: int,
        bucketing: Bucketing | None = None,
    ) -> None:
        self.ids = ids
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
        self._predictor = CodePredictor(module.code_predictor, rows, predictor, bucketing)
        self.groups = self._predictor.groups
        self._rows = TtsRowTable(module)
        self._device = self._head.device
        vocabulary, width = self._head.shape
        later = module.config["code_predictor_config"]["vocab_size"]
        largest = max(vocabulary - CONTROL_IDS, later)
        if largest > code_entries:
            raise FailedPrecondition(
                f"the talker draws codes below {largest}, the codec knows {code_entries}"
            )
        places = torch.arange(vocabulary, device=self._device)
        self._suppressed = (places >= vocabulary - CONTROL_IDS) & (places != ids.stop)
        self._not_yet = self._suppressed | (places == ids.stop)
        # By slot: first codes drawn so far, and the codec side of the next row.
        self._seen = torch.zeros(slots, vocabulary, dtype=torch.bool, device=self._device)
        self._pending = torch.zeros(slots, width, dtype=self._head.dtype, device=self._device)

    def take_slot(self) -> int:
        """A slot for a new segment. Raises `ResourceExhausted`."""
        slot = self._slots.take()
        if slot is None:
            raise ResourceExhausted(f"all {self.cache.slots} slots are taken")
        return slot

    def begin(self, slot: int, prompt: Prompt) -> None:
        """The slot's segment will speak behind this prompt."""
        last = len(prompt.text) - 1
        self._seen[slot] = False
        self._pending[slot] = self._rows.codec_side(prompt, last, last + 1)[0]

    def give_slot_back(self, slot: int, doubtful: range) -> None:
        """The slot's segment is gone; these positions may hold what is not finite."""
        if doubtful:
            self.cache.clear(slot, doubtful.start, doubtful.stop)
        self._slots.free(slot)

    def step(self, turns: Sequence[TtsTurn]) -> list[TtsFrame | None]:
        """Append the rows of all in one forward; the frame of each that draws.

        After an error it can be called again with the same: a segment's draws are noted last.
        """
        parts = [part for turn in turns for part in turn.parts]
        draws = [turn.draw for turn in turns if turn.draw is not None]
        draws.sort(key=lambda draw: self._decoder.order(draw.span))
        spans = [*(each.span for each in parts), *(each.span for each in draws)]
        plan = self._decoder.plan(self.cache, spans)
        # Products over the draws' rows alone need as many, too.
        filled = [*draws, *draws[-1:] * (LEAST_ROWS - len(draws))]
        rows = [self._part(each) for each in parts]
        if filled:
            rows.append(self._next_rows(filled))
        states, _ = self._decoder.append(torch.cat(rows), plan)
        drawn = self._draw(states[-len(filled) :], filled, len(draws)) if draws else []
        frames = dict(zip((draw.slot for draw in draws), drawn, strict=True))
        return [None if turn.draw is None else frames[turn.draw.slot] for turn in turns]

    def _part(self, part: PromptPart[SpokenText]) -> Tensor:
        """[n, hidden]: rows of a prompt."""
        return self._rows.prompt(part.prompt.held, part.start, part.stop)

    def _next_rows(self, draws: Sequence[TtsDraw]) -> Tensor:
        """[n, hidden]: the frames before, and the text that goes with them."""
        slots = on_device([each.slot for each in draws], self._device)
        pad = self.ids.tts_pad
        text = [pad if each.text is None else each.text for each in draws]
        return self._pending[slots] + self._rows.text(on_device(text, self._device))

    def _draw(self, states: Tensor, draws: Sequence[TtsDraw], count: int) -> list[TtsFrame]:
        """A frame for each of the states [n, hidden], of which the first `count` are kept."""
        samplings = [each.sampling for each in draws]
        steps = [each.step for each in draws]
        seeds = [each.seed for each in samplings]
        slots = on_device([each.slot for each in draws], self._device)
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
        decided = decided & likeliest.isfinite()
        known = torch.cat((codes, decided[:, None]), dim=1)[:count].cpu().numpy()
        self._seen[slots[:count], first[:count]] = True
        self._pending[slots[:count]] = rows[:count]
        return [TtsFrame(row[None, :-1].astype(np.uint16), bool(row[-1])) for row in known]
