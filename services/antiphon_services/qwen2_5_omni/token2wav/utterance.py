"""One utterance on its way from codes to samples, whole or piece by piece.

A block of mel frames is final when `held_blocks` blocks behind it have been computed with it, or
the utterance has ended: blocks ahead have an influence that falls quickly with their distance.
The blocks that were held back are computed anew with those that follow. Samples leave when the
vocoder's context behind them is final, too. With random weights 2 held blocks are enough for a
difference to the whole at rounding's level; trained ones may need more, as layers reach further
where their gates are wide.

The noise is drawn on the CPU by a generator of the utterance's own, so that it depends on the
key alone: a prefix of the noise of a longer utterance is that of a shorter one.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from antiphon.pipelines.qwen2_5_omni import noise_source
from antiphon.transport.device_edge import on_device
from antiphon_services.qwen2_5_omni.token2wav.blocks import BlockSpan, FlowMemory
from antiphon_services.qwen2_5_omni.token2wav.flow import Flow, FlowPart, FlowVoice
from antiphon_services.qwen2_5_omni.token2wav.vocoder import CONTEXT


class Utterance:
    """Codes come in by `add`. While `next_part` gives one, its mel goes to `take`; then samples
    of `window` go to `cut`.

    `seed` keys the noise. After `held_blocks` a block is final; of one whose codes all come at once
    it has no effect.
    """

    def __init__(self, flow: Flow, voice: FlowVoice, *, seed: int, held_blocks: int) -> None:
        self._flow, self._voice, self._held = flow, voice, held_blocks
        self._source = noise_source(seed)
        self._memory: FlowMemory | None = None
        self._finished = False
        # Codes and noise of the blocks from number `_first` on, which are not final.
        self._first = 0
        self._codes = torch.empty(0, dtype=torch.int64, device=flow.device)
        self._noise = torch.empty(0, flow.mel_width, device=flow.device)
        # Final frames: those that have no samples yet, and context before them.
        self._mel = torch.empty(0, flow.mel_width, device=flow.device)
        self._context = 0

    def add(self, codes: Tensor, *, finished: bool) -> None:
        """Take codes int64 [n] of the host; none may follow when it is `finished`."""
        self._codes = torch.cat((self._codes, on_device(codes.numpy(), self._codes.device)))
        self._finished = finished

    @property
    def ready(self) -> bool:
        """Whether blocks can become final, or samples can leave."""
        return self.ready_with(0, finished=self._finished)

    def ready_with(self, more: int, *, finished: bool) -> bool:
        """Whether it will be `ready` when so many codes more are here."""
        count = len(self._codes) + more
        _, final = self._split(count, finished=finished)
        return final > 0 or self._leaving_when(ended=finished and not count) > 0

    def _split(self, codes: int, *, finished: bool) -> tuple[int, int]:
        """How many blocks so many codes make, and how many of these will be final."""
        frames = codes * self._flow.frames_per_code
        if finished:
            blocks = -(-frames // self._flow.block_frames)
            return blocks, blocks
        blocks = frames // self._flow.block_frames
        return blocks, max(0, blocks - self._held)

    @property
    def _blocks(self) -> tuple[int, int]:
        return self._split(len(self._codes), finished=self._finished)

    def next_part(self) -> FlowPart | None:
        """The blocks that are not final; None where none of them becomes final."""
        blocks, final = self._blocks
        if not final:
            return None
        size = self._flow.block_frames
        rows = min(blocks * size, len(self._codes) * self._flow.frames_per_code)
        self._draw_noise(blocks * size)
        if self._memory is None and not self._finished:
            self._memory = self._flow.memory()
        span = BlockSpan(
            self._first,
            self._first + blocks,
            last_frames=rows - (blocks - 1) * size,
            memory=self._memory,
            kept=None if self._finished else self._first + final,
        )
        codes = self._codes.repeat_interleave(self._flow.frames_per_code)[:rows]
        return FlowPart(span, self._voice, self._noise[:rows], codes)

    def take(self, mel: Tensor) -> None:
        """The mel frames [rows, width] of the part that `next_part` gave last."""
        final = self._blocks[1]
        frames = final * self._flow.block_frames
        self._mel = torch.cat((self._mel, mel[:frames]))
        self._first += final
        self._noise = self._noise[frames:]
        self._codes = self._codes[frames // self._flow.frames_per_code :]

    def window(self) -> Tensor:
        """Mel frames [n, width] for the vocoder; none where no samples can leave."""
        return self._mel if self._leaving else self._mel[:0]

    def cut(self, samples: Tensor) -> Tensor:
        """What leaves of the vocoder's samples of `window`, in order and exactly once."""
        leaving = self._leaving
        if not leaving:
            return samples
        each = len(samples) // len(self._mel)
        end = self._context + leaving
        kept = samples[self._context * each : end * each]
        start = max(0, end - CONTEXT)
        self._mel, self._context = self._mel[start:], end - start
        return kept

    @property
    def _leaving(self) -> int:
        """Of how many final frames samples can leave."""
        return self._leaving_when(ended=self._finished and not len(self._codes))

    def _leaving_when(self, *, ended: bool) -> int:
        return max(0, len(self._mel) - self._context - (0 if ended else CONTEXT))

    def _draw_noise(self, rows: int) -> None:
        """Have noise of so many rows from block `_first` on."""
        missing = rows - len(self._noise)
        if missing > 0:
            drawn = self._source.standard_normal((missing, self._flow.mel_width), np.float32)
            self._noise = torch.cat((self._noise, on_device(drawn, self._noise.device)))
