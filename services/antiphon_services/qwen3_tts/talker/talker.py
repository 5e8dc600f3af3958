"""The talker model of a Qwen3-TTS checkpoint: forward passes and sampling."""

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

# Literals in the vendor's `generate`. Of the last IDs in the vocabulary, only the stop code can be
# sampled, and it can't be one of the first draws.
CONTROL_IDS = 1024
LEAST_DRAWS = 2


@dataclass(frozen=True, slots=True)
class TtsTurn:
    """A segment's work in one step.

    It consists of consecutive parts of the segment's prompt, the `known` frames after them, and a
    draw. If the text of the draw is None, it is padding.
    """

    parts: Sequence[PromptPart[TtsText]]
    known: Sequence[KnownPart[TtsText]]
    draw: FrameDraw[int | None] | None


class TtsTalker(GroupedFrameDecoder):
    """Performs the talker's forward passes and sampling for up to `slots` sessions of
    `context_limit` positions.

    `code_entries` is the size of the codec's codebooks. `predictor` contains the sampling settings
    of the later groups, which apply unless the first codes are greedy. `readback` copies frames to
    the host. Without it, each step waits for its frames. If `bucketing` is given, parts of a step
    run as CUDA graphs, which use `kernels` if they are given.

    Raises `InvalidArgument` if the slots don't fit into memory, and `FailedPrecondition` if the
    talker could sample codes that the codec doesn't have.
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
                f"the talker generates codes below {largest}, but the codec only supports "
                f"{code_entries}"
            )
        places = torch.arange(vocabulary, device=self._device)
        self._suppressed = (places >= vocabulary - CONTROL_IDS) & (places != ids.stop)
        self._not_yet = self._suppressed | (places == ids.stop)

    def begin(self, slot: int, prompt: Prompt) -> None:
        """Prepare the slot for the draws that follow this prompt."""
        self.begin_speech(slot, self._begin(prompt))

    def step(self, turns: Sequence[TtsTurn]) -> list[PendingDraw | None]:
        """Append all rows in one forward pass. Returns a pending frame for each turn that has a
        draw.

        Draws are only recorded at the end, so after an error, the step can be repeated with the
        same arguments. If `readback` copies asynchronously, the step doesn't wait for the device.
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
        """Return the rows [n, hidden] of a prompt."""
        return self._rows.prompt(part.prompt.held, part.start, part.stop)

    def first_code_rows(self, codes: Tensor) -> Tensor:
        """Return the embeddings [n, hidden] of first codes."""
        return self._rows.code(codes)

    def _known_rows(self, part: KnownPart[TtsText]) -> Tensor:
        """Return the rows [n, hidden] that `_next_rows` would have returned if the known frames had
        been sampled.
        """
        begin = self._begin(part.prompt.held)
        return self.known_sides(part, begin) + self._text_sides(part.texts)

    def _text_sides(self, texts: Sequence[int | None]) -> Tensor:
        """Return the text sides [n, hidden] for these IDs. None stands for padding."""
        pad = self.ids.tts_pad
        padded = [pad if each is None else each for each in texts]
        return self._rows.text(on_device(padded, self._device))

    def _begin(self, prompt: Prompt) -> Tensor:
        """Return the codec side [hidden] of the prompt's last row, which belongs to the first
        draw.
        """
        last = len(prompt.text) - 1
        return self._rows.codec_side(prompt, last, last + 1)[0]

    def _next_rows(self, draws: Sequence[FrameDraw[int | None]]) -> Tensor:
        """Return rows [n, hidden] that combine the previous frames with the text IDs of the
        draws.
        """
        return self.next_sides(draws) + self._text_sides([each.text for each in draws])

    def _draw(self, states: Tensor, draws: Sequence[FrameDraw[int | None]], count: int) -> Tensor:
        """Sample a frame from each of the states [n, hidden] and keep the first `count` frames."""
        early = on_device([each.step < LEAST_DRAWS for each in draws], self._device)[:, None]
        suppressed = torch.where(early, self._not_yet, self._suppressed)
        return self.draw_frames(states, draws, count, suppressed)
