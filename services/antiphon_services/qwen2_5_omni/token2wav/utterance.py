"""Decodes an utterance from codes to samples, either as a whole or in pieces.

A block of mel frames becomes final once `held_blocks` later blocks have been computed together with
it, or at the end of the utterance. All later blocks affect a block, but the effect decreases
quickly with distance. Blocks that have been held are computed again, together with the blocks that
follow. Samples are emitted once the frames that the vocoder needs after them are final as well.
With random weights, 2 held blocks are enough: apart from rounding errors, the result is the same as
when the whole utterance is decoded. Trained weights may need more, because layers with wide gates
reach further.

Each utterance has its own generator, which draws its noise on the CPU, so the noise depends only on
the seed. A shorter utterance's noise is a prefix of a longer one's.
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
    """An utterance. Its codes are passed to `add`.

    As long as `next_part` returns a part, pass its mel frames to `take`, and then pass the samples
    for `window` to `cut`. `seed` determines the noise. A block becomes final after `held_blocks`
    more blocks, which makes no difference if all codes arrive at once.
    """

    def __init__(self, flow: Flow, voice: FlowVoice, *, seed: int, held_blocks: int) -> None:
        self._flow, self._voice, self._held = flow, voice, held_blocks
        self._source = noise_source(seed)
        self._memory: FlowMemory | None = None
        self._finished = False
        # The codes and the noise of the blocks that aren't final yet, beginning with block
        # `_first`.
        self._first = 0
        self._codes = torch.empty(0, dtype=torch.int64, device=flow.device)
        self._noise = torch.empty(0, flow.mel_width, device=flow.device)
        # Final frames whose samples haven't been computed yet, and the context before them.
        self._mel = torch.empty(0, flow.mel_width, device=flow.device)
        self._context = 0

    def add(self, codes: Tensor, *, finished: bool) -> None:
        """Add codes (int64 [n] on the host). Set `finished` if no more codes follow."""
        self._codes = torch.cat((self._codes, on_device(codes.numpy(), self._codes.device)))
        self._finished = finished

    @property
    def ready(self) -> bool:
        """Whether any blocks can become final or any samples can be emitted."""
        return self.ready_with(0, finished=self._finished)

    def ready_with(self, more: int, *, finished: bool) -> bool:
        """Return whether the utterance would be `ready` after adding `more` codes."""
        count = len(self._codes) + more
        _, final = self._split(count, finished=finished)
        return final > 0 or self._leaving_when(ended=finished and not count) > 0

    def _split(self, codes: int, *, finished: bool) -> tuple[int, int]:
        """Return the number of blocks for this many codes and the number of blocks that become
        final.
        """
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
        """Return the blocks that aren't final yet, or None if none of them can become final."""
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
        """Store the mel frames [rows, width] of the part most recently returned by `next_part`."""
        final = self._blocks[1]
        frames = final * self._flow.block_frames
        self._mel = torch.cat((self._mel, mel[:frames]))
        self._first += final
        self._noise = self._noise[frames:]
        self._codes = self._codes[frames // self._flow.frames_per_code :]

    def window(self) -> Tensor:
        """Return the mel frames [n, width] for the vocoder. n is 0 if no samples can be emitted."""
        return self._mel if self._leaving else self._mel[:0]

    def cut(self, samples: Tensor) -> Tensor:
        """Return the samples of `window` that haven't been returned before. Each sample is returned
        exactly once, in order.
        """
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
        """Return the number of final frames whose samples can be emitted."""
        return self._leaving_when(ended=self._finished and not len(self._codes))

    def _leaving_when(self, *, ended: bool) -> int:
        return max(0, len(self._mel) - self._context - (0 if ended else CONTEXT))

    def _draw_noise(self, rows: int) -> None:
        """Extend the noise to a total of `rows` rows, beginning with block `_first`."""
        missing = rows - len(self._noise)
        if missing > 0:
            drawn = self._source.standard_normal((missing, self._flow.mel_width), np.float32)
            self._noise = torch.cat((self._noise, on_device(drawn, self._noise.device)))
