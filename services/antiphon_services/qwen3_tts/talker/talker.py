"""The talker of one Qwen3-TTS checkpoint: what the engine computes with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.errors import FailedPrecondition
from antiphon.transport.device_edge import on_device
from antiphon.values.sampling import Sampling
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.grouped_frames import GroupedFrameDecoder
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.lm.readback import PendingDraw, Readback
from antiphon_services.qwen3_tts.talker.module import TalkerModule
from antiphon_services.qwen3_tts.talker.prompt import Prompt, SpeechIds
from antiphon_services.qwen3_tts.talker.rows import TtsRowTable
from antiphon_services.qwen3_tts.talker.tts_segment import TtsText

# Literals of the vendor's `generate`: of the last ids of the vocabulary only the stop code may
# be drawn, and that not among the first draws.
CONTROL_IDS = 1024
LEAST_DRAWS = 2


@dataclass(frozen=True, slots=True)
class TtsTurn:
    """What a segment does in a step: parts of its prompt in order, `known` frames behind them, and
    a draw, whose text is None for padding."""

    parts: Sequence[PromptPart[TtsText]]
    known: Sequence[KnownPart[TtsText]]
    draw: FrameDraw[int | None] | None


class TtsTalker(GroupedFrameDecoder):
    """Forward passes and draws; `slots` sessions of `context_limit` positions at most.

    `code_entries` is the size of the codec's books, `predictor` how later groups are drawn where
    first codes are not greedy. Raises `InvalidArgument` when there is no memory for the slots,
    and `FailedPrecondition` when codes could be drawn that the codec does not have. `readback`
    brings frames; without it each step waits for them. `bucketing` runs what can be a graph,
    by `kernels` if there are any.
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
        readback: Readback | None = None,
        bucketing: Bucketing | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        super().__init__(
            module,
            predictor,
            context_limit=context_limit,
            slots=slots,
            bucketing=bucketing,
            kernels=kernels,
        )
        self.ids = ids
        self._readback = readback or Readback(None)
        self._rows = TtsRowTable(module)
        vocabulary = len(self._head)
        later = module.config["code_predictor_config"]["vocab_size"]
        self.code_sizes = (vocabulary - CONTROL_IDS, *[later] * (self.groups - 1))
        largest = max(self.code_sizes)
        if largest > code_entries:
            raise FailedPrecondition(
                f"the talker draws codes below {largest}, the codec knows {code_entries}"
            )
        places = torch.arange(vocabulary, device=self._device)
        self._suppressed = (places >= vocabulary - CONTROL_IDS) & (places != ids.stop)
        self._not_yet = self._suppressed | (places == ids.stop)

    def begin(self, slot: int, prompt: Prompt) -> None:
        """The slot's segment will speak behind this prompt."""
        self.begin_speech(slot, self._begin(prompt))

    def step(self, turns: Sequence[TtsTurn]) -> list[PendingDraw | None]:
        """Append the rows of all in one forward; the frame of each that draws.

        After an error it can be called again with the same: a segment's draws are noted last.
        Nothing in here waits for the device where `readback` copies beside its work.
        """
        parts = [part for turn in turns for part in turn.parts]
        known = [part for turn in turns for part in turn.known]
        wanted = [turn.draw for turn in turns if turn.draw is not None]
        arranged = self.arrange([*parts, *known], wanted)
        draws, filled = arranged.draws, arranged.filled
        rows = [*map(self._part, parts), *map(self._known_rows, known)]
        if filled:
            rows.append(self._next_rows(filled))
        states, _ = self._decoder.append(torch.cat(rows), arranged.plan)
        if not wanted:
            return [None] * len(turns)
        drawn = self._draw(states[-len(filled) :], filled, len(draws))
        frames = iter(self._readback.begin(drawn, arranged.rows_of(wanted)))
        return [None if turn.draw is None else next(frames) for turn in turns]

    def _part(self, part: PromptPart[TtsText]) -> Tensor:
        """[n, hidden]: rows of a prompt."""
        return self._rows.prompt(part.prompt.held, part.start, part.stop)

    def first_code_rows(self, codes: Tensor) -> Tensor:
        """[n, hidden]: the embeddings of first codes."""
        return self._rows.code(codes)

    def _known_rows(self, part: KnownPart[TtsText]) -> Tensor:
        """[n, hidden]: what `_next_rows` would have been, were the frames drawn."""
        begin = self._begin(part.prompt.held)
        return self.known_sides(part, begin) + self._text_sides(part.texts)

    def _text_sides(self, texts: Sequence[int | None]) -> Tensor:
        """[n, hidden]: of ids, and of padding where there is none."""
        pad = self.ids.tts_pad
        padded = [pad if each is None else each for each in texts]
        return self._rows.text(on_device(padded, self._device))

    def _begin(self, prompt: Prompt) -> Tensor:
        """[hidden]: the codec side of the prompt's last row, which is the first draw's."""
        last = len(prompt.text) - 1
        return self._rows.codec_side(prompt, last, last + 1)[0]

    def _next_rows(self, draws: Sequence[FrameDraw[int | None]]) -> Tensor:
        """[n, hidden]: the frames before, and the text that goes with them."""
        return self.next_sides(draws) + self._text_sides([each.text for each in draws])

    def _draw(self, states: Tensor, draws: Sequence[FrameDraw[int | None]], count: int) -> Tensor:
        """A frame for each of the states [n, hidden], of which the first `count` are kept."""
        early = on_device([each.step < LEAST_DRAWS for each in draws], self._device)[:, None]
        suppressed = torch.where(early, self._not_yet, self._suppressed)
        return self.draw_frames(states, draws, count, suppressed)
