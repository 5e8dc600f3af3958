"""A checkpoint's talker model: forward passes and sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.transport.device_edge import ToDevice, on_device
from antiphon.values.sampling import Sampling
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.grouped_frames import GroupedFrameDecoder
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.lm.readback import PendingDraw, Readback
from antiphon_services.qwen3_omni.talker.prompt import TalkerPrompt
from antiphon_services.qwen3_omni.talker.rows import RowTable

# The last IDs of the vocabulary are control IDs. Of these, only the stop code can be sampled. The
# number is a literal in `Qwen3OmniMoeForConditionalGeneration.generate`.
CONTROL_IDS = 1024

# The code predictor's settings if sampling isn't greedy. They are literals in
# `prepare_inputs_for_generation`, except for the temperature, which is the default of `generate`.
PREDICTOR_SAMPLING = Sampling(
    temperature=1.0, top_k=50, top_p=0.8, repetition_penalty=1.0, seed=0, max_tokens=1
)


class Talker(GroupedFrameDecoder):
    """The talker's forward passes and sampling.

    `module` has the same interface as Hugging Face's talker for conditional generation.
    `embeddings` [V, thinker hidden] is the thinker's word table, and `code_entries` is the size of
    code2wav's codebooks. `window` has the same meaning as in `TalkerPrompt`. `to_device` copies
    hidden rows to the device, and `readback` copies frames back to the host. Without `readback`,
    each step waits for its frames. If `bucketing` is given, parts of a step run as CUDA graphs,
    which use `kernels` if they are given.

    Raises `FailedPrecondition` if the talker has no voice or could sample codes outside the
    codebooks, and `InvalidArgument` if there isn't enough memory for `slots` segments of
    `context_limit` positions.
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
        window: int = 0,
        to_device: ToDevice | None = None,
        readback: Readback | None = None,
        bucketing: Bucketing | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        super().__init__(
            module,
            PREDICTOR_SAMPLING,
            context_limit=context_limit,
            slots=slots,
            bucketing=bucketing,
            kernels=kernels,
        )
        self._special = special
        self._window = window
        self.rows = RowTable(module, embeddings, to_device)
        self.stop_code = int(module.config.codec_eos_token_id)
        vocabulary = int(module.config.text_config.vocab_size)
        later = int(module.config.code_predictor_config.vocab_size)
        self.code_sizes = (vocabulary - CONTROL_IDS, *[later] * (self.groups - 1))
        largest = max(self.code_sizes)
        if largest > code_entries:
            raise FailedPrecondition(
                f"the talker generates codes below {largest}, but code2wav only supports "
                f"{code_entries}"
            )
        if not self.rows.voices:
            raise FailedPrecondition("config.json: talker_config.speaker_id contains no voices")
        self._readback = readback or Readback(None)
        ids = torch.arange(vocabulary, device=self._device)
        self._suppressed = (ids >= vocabulary - CONTROL_IDS) & (ids != self.stop_code)
        # For each slot, the difference between rotary positions and places in the sequence, for
        # rows after the prompt.
        self._shifts = [0] * slots

    @property
    def voices(self) -> tuple[str, ...]:
        """The names of the voices in lower case, starting with the default voice."""
        return self.rows.voices

    def new_prompt(self) -> TalkerPrompt:
        """Return an empty prompt, with this checkpoint's IDs and widths."""
        return TalkerPrompt(
            self._special, self.rows.vocabulary, self.rows.hidden_row_width, window=self._window
        )

    def take_slot(self, session: str, *, returns: bool) -> int:
        """Return a slot for a new segment, as described in `FrameDecoder.take_slot`."""
        slot = super().take_slot(session, returns=returns)
        self.begin_speech(slot, self.rows.begin)
        self._shifts[slot] = 0
        return slot

    def step(
        self,
        chunks: Sequence[PromptPart[TalkerPrompt]],
        draws: Sequence[FrameDraw[int]],
        known: Sequence[KnownPart[TalkerPrompt]] = (),
    ) -> list[PendingDraw]:
        """Append all rows in one forward pass. Returns a pending frame for each element of `draws`,
        in order.

        A segment's last prompt chunk, its last `known` frames and its first draw can all be in the
        same step. With asynchronous copies in both directions, the step doesn't wait for the
        device, except for the routing of experts in `antiphon_services.lm.experts`.
        """
        arranged = self.arrange([*chunks, *known], draws)
        ordered, filled = arranged.draws, arranged.filled
        rows = [self.rows.prompt(each.prompt, each.start, each.stop, each.voice) for each in chunks]
        rows += [self._known_rows(each) for each in known]
        if filled:
            rows.append(self._next_rows(filled))
        turned = self._turned(chunks, known, ordered)
        states, _ = self._decoder.append(torch.cat(rows), arranged.plan, turned)
        if not draws:
            return []
        last = states[-len(filled) :]
        drawn = self.draw_frames(last, filled, len(draws), self._suppressed)
        return self._readback.begin(drawn, arranged.rows_of(draws))

    def _turned(
        self,
        chunks: Sequence[PromptPart[TalkerPrompt]],
        known: Sequence[KnownPart[TalkerPrompt]],
        draws: Sequence[FrameDraw[int]],
    ) -> Tensor | None:
        """Return the rotary positions of all rows, or None if they are the same as the rows' places
        in the sequence.

        Images and videos take fewer positions than rows, and their rows have different positions on
        each axis.
        """
        for each in chunks:
            self._shifts[each.slot] = each.prompt.position_shift
        spans = [*(each.span for each in known), *(each.span for each in draws)]
        slots = [*(each.slot for each in chunks), *(each.slot for each in spans)]
        if not any(self._shifts[slot] for slot in slots):
            return None
        parts = [each.prompt.positions(each.start, each.stop) for each in chunks]
        places = ((at, each.slot) for each in spans for at in range(each.start, each.end))
        shifted = np.array([at + self._shifts[slot] for at, slot in places], np.int64)
        parts.append(np.repeat(shifted[:, None], 3, axis=1))
        positions = np.concatenate(parts)
        # Only the rows of images and videos have different positions on each axis. Without such
        # rows, graphs can be used.
        same = (positions == positions[:, :1]).all()
        return on_device(positions[:, 0].copy() if same else positions, self._device)

    def first_code_rows(self, codes: Tensor) -> Tensor:
        """Return the embeddings [n, hidden] of first codes."""
        return self.rows.code(codes)

    def _known_rows(self, part: KnownPart[TalkerPrompt]) -> Tensor:
        """Return the rows [n, hidden] that `_next_rows` would have returned if the known frames had
        been sampled.
        """
        text = self.rows.text(on_device(part.texts, self._device))
        return self.known_sides(part, self.rows.begin) + text

    def _next_rows(self, draws: Sequence[FrameDraw[int]]) -> Tensor:
        """Return rows [n, hidden] that combine the codes of the previous frames with the text IDs
        of the draws.
        """
        tokens = on_device([each.text for each in draws], self._device)
        return self.next_sides(draws) + self.rows.text(tokens)
