"""The language model of one checkpoint: what the engine computes with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from antiphon.transport.device_edge import on_device
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.frame_decoder import FrameDecoder
from antiphon_services.lm.frames import PromptPart
from antiphon_services.lm.pending_step import DrawInFlight
from antiphon_services.lm.readback import Readback
from antiphon_services.lm.spoken_engine import JointModel
from antiphon_services.mimo_audio.talker.dialogue_segment import DialogueInput
from antiphon_services.mimo_audio.talker.draws import PositionDraws, TextDraw
from antiphon_services.mimo_audio.talker.group_encoder import GroupEncoder
from antiphon_services.mimo_audio.talker.module import SpeechTextModule
from antiphon_services.mimo_audio.talker.prompt import TaskPrompt


class DialogueModel(JointModel, Protocol):
    """What computes for a `SpeechTextEngine`."""

    draws: PositionDraws

    def begin(self, slot: int, prompt: TaskPrompt) -> None:
        """The slot's segment will answer this prompt."""


class SpeechTextModel(FrameDecoder):
    """Forward passes and draws, for `slots` sessions of `context_limit` positions at most.

    Raises `InvalidArgument` when there is no memory for the slots.
    """

    def __init__(
        self,
        module: SpeechTextModule,
        encoder: GroupEncoder,
        draws: PositionDraws,
        *,
        context_limit: int,
        slots: int,
        readback: Readback,
    ) -> None:
        decoder = Decoder(module.model, context_limit, batch_invariant=True, exact_norms=False)
        super().__init__(decoder, slots, context_limit)
        self.draws = draws
        self.code_sizes = draws.code_sizes
        self._encoder = encoder
        self._readback = readback

    def begin(self, slot: int, prompt: TaskPrompt) -> None:
        """See `PositionDraws.begin`."""
        self.draws.begin(slot, prompt)

    def step(
        self, parts: Sequence[PromptPart[DialogueInput]], draws: Sequence[TextDraw]
    ) -> Sequence[DrawInFlight]:
        """See `JointModel.step`; all rows are in one forward."""
        arranged = self.arrange(parts, draws)
        device = self.draws.device
        ids = [on_device(each.prompt.held.ids[each.start : each.stop], device) for each in parts]
        codes = [
            on_device(each.prompt.held.codes[each.start : each.stop].astype(np.int64), device)
            for each in parts
        ]
        if draws:
            drawn_ids, drawn_codes = self.draws.inputs([each.slot for each in arranged.filled])
            ids.append(drawn_ids)
            codes.append(drawn_codes)
        # On a CPU asking is free, and encoding is not.
        groups = None
        if device.type != "cpu":
            drawing = len(arranged.filled) if draws else 0
            groups = on_device(self._may_be_groups(parts, drawing), device)
        rows = self._encoder.rows(torch.cat(ids), torch.cat(codes), groups)
        states, _ = self._decoder.append(rows, arranged.plan)
        if not draws:
            return []
        start = sum(each.stop - each.start for each in parts)
        filled = states[start : start + len(arranged.filled)]
        drawn = self.draws.draw(filled, arranged.filled, len(draws))
        return self._readback.begin(drawn, arranged.rows_of(draws))

    def _may_be_groups(
        self, parts: Sequence[PromptPart[DialogueInput]], drawing: int
    ) -> npt.NDArray[np.intp]:
        """Return the rows of a forward pass that may be groups: groups of `parts`, and all
        `drawing` rows after them, which only the device knows."""
        ids = [each.prompt.held.ids[each.start : each.stop] for each in parts]
        drawn = np.full(drawing, self._encoder.empty_id)
        return np.flatnonzero(np.concatenate([*ids, drawn]) == self._encoder.empty_id)
