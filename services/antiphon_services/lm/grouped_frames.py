"""The decoder of an engine whose frames consist of several codes, including the state of each slot.

A frame's first code is drawn by a separate head, and its other codes are drawn by a code predictor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear

from antiphon.transport.device_edge import on_device
from antiphon.values.sampling import Sampling
from antiphon_services.lm.codebooks import CodePredictor
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.frame_decoder import FrameDecoder
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.kernels import Kernels
from antiphon_services.lm.known_frames import KnownPart
from antiphon_services.lm.sampler import SamplingRows, choose_each, draw_numbers


class GroupedFrameDecoder(FrameDecoder, ABC):
    """A decoder for frames that consist of several codes.

    `module` has the attributes `model`, `codec_head` and `code_predictor`. `predictor` contains the
    code predictor's sampling settings, which are ignored if the first codes are greedy. If
    `bucketing` is given, parts of the computation run as graphs, and if `kernels` is given, their
    operations are fused. Raises the same errors as `FrameDecoder`.
    """

    def __init__(
        self,
        module: Any,
        predictor: Sampling,
        *,
        context_limit: int,
        slots: int,
        bucketing: Bucketing | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        rows = max(slots, LEAST_ROWS)
        # Graphs are captured in the order in which they are replayed, as
        # `antiphon_services.lm.graphs` requires.
        decoder = Decoder(
            module.model,
            context_limit,
            batch_invariant=True,
            exact_norms=False,
            bucketing=bucketing,
            most_rows=rows,
            kernels=kernels,
        )
        super().__init__(decoder, slots, context_limit)
        self._predictor = CodePredictor(module.code_predictor, rows, predictor, bucketing, kernels)
        self._choose = kernels.choose if kernels else choose_each
        self.groups = self._predictor.groups
        self._head: Tensor = module.codec_head.weight
        self._device = self._head.device
        vocabulary, width = self._head.shape
        # For each slot, the first codes drawn so far, and the codec part of the next row.
        self._seen = torch.zeros(slots, vocabulary, dtype=torch.bool, device=self._device)
        self._pending = torch.zeros(slots, width, dtype=self._head.dtype, device=self._device)

    @abstractmethod
    def first_code_rows(self, codes: Tensor) -> Tensor:
        """Return the embeddings [n, hidden] of these first codes."""

    def begin_speech(self, slot: int, side: Tensor) -> None:
        """Reset the draws of a slot. `side` [hidden] is the codec part of the row for the first
        draw.
        """
        self._seen[slot] = False
        self._pending[slot] = side

    def next_sides(self, draws: Sequence[FrameDraw[Any]]) -> Tensor:
        """Return the codec part [n, hidden] of each draw's row. It is derived from the previous
        frame.
        """
        return self._pending[on_device([each.slot for each in draws], self._device)]

    def known_sides(self, part: KnownPart[Any], begin: Tensor) -> Tensor:
        """Return the codec parts [n, hidden] that `next_sides` would have returned if the known
        frames had been drawn.

        The first codes of these frames are recorded for the repetition penalty. `begin` [hidden] is
        the codec part for the first draw.
        """
        codes = on_device(np.concatenate((part.before, part.frames)).astype(np.int64), self._device)
        sides = self._predictor.embedded(codes, self.first_code_rows(codes[:, 0]))
        self._seen[part.slot, codes[:, 0]] = True
        self._pending[part.slot] = sides[-1]
        if not part.step:
            sides = torch.cat((begin[None], sides))
        return sides[:-1]

    def draw_frames(
        self, states: Tensor, draws: Sequence[FrameDraw[Any]], count: int, suppressed: Tensor
    ) -> Tensor:
        """Return the frames for the first `count` draws, given the last states [n, hidden].

        The result is int64 [count, G + 1]. Each row contains the frame's codes, followed by a value
        that indicates whether the logits left at least one ID to choose from. First codes that are
        marked in `suppressed` (bool [V] or [n, V]) are never drawn. The draws are only recorded at
        the end, so the call can be repeated after an error.
        """
        samplings = [each.sampling for each in draws]
        steps = [each.step for each in draws]
        numbers = on_device(draw_numbers(samplings, steps, self.groups), self._device)
        slots = on_device([each.slot for each in draws], self._device)
        settings = SamplingRows.of(samplings, self._device)
        first, likeliest = self._choose(
            linear(states, self._head),
            settings,
            numbers[:, :1],
            seen=self._seen.index_select(0, slots),
            suppressed=suppressed,
        )
        embedding = self.first_code_rows(first)
        codes, rows, decided = self._predictor.frames(states, first, embedding, settings, numbers)
        decided = decided & likeliest.isfinite()
        # This must be a separate tensor, because the next step's graph may overwrite `codes`.
        drawn = torch.cat((codes, decided[:, None]), dim=1)[:count]
        self._seen[slots[:count], first[:count]] = True
        self._pending[slots[:count]] = rows[:count]
        return drawn
