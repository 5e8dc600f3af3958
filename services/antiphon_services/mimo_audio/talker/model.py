"""The language model of a checkpoint, which performs the computations of the engine."""

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
    """The model that a `SpeechTextEngine` uses."""

    draws: PositionDraws

    def begin(self, slot: int, prompt: TaskPrompt) -> None:
        """Prepare the slot for the answer to a prompt."""


class SpeechTextModel(FrameDecoder):
    """Performs forward passes and draws for up to `slots` sessions of `context_limit` positions.

    Raises `InvalidArgument` if the slots do not fit in memory.
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
        """Implements `DialogueModel.begin`."""
        self.draws.begin(slot, prompt)

    def step(
        self, parts: Sequence[PromptPart[DialogueInput]], draws: Sequence[TextDraw]
    ) -> Sequence[DrawInFlight]:
        """Implements `JointModel.step`. All rows are computed in a single forward pass."""
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
        # On a CPU, searching for groups costs nothing, but encoding them does.
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
        """Return the rows of a forward pass that may contain groups.

        These are the groups of `parts`, and all of the `drawing` rows after them, whose contents
        are only known to the device.
        """
        ids = [each.prompt.held.ids[each.start : each.stop] for each in parts]
        drawn = np.full(drawing, self._encoder.empty_id)
        return np.flatnonzero(np.concatenate([*ids, drawn]) == self._encoder.empty_id)
