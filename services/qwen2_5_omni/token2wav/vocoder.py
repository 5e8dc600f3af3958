"""The vocoder: samples from mel frames.

It is not causal, and what it makes of a frame depends on some frames before and after. A piece
from the middle is made with `CONTEXT` frames more on either side, whose samples are dropped; at
the utterance's true ends nothing is added, as its padding there is part of the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

CONTEXT = 20
"""Frames on either side of a piece. The layers reach 26; what the last 6 add is below 1e-7."""


class MelVocoder:
    """`module` is Hugging Face's BigVGAN, in float32."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.samples_per_frame = 1
        for rate in module.config.upsample_rates:
            self.samples_per_frame *= rate

    def decode(self, mels: Sequence[Tensor]) -> list[Tensor]:
        """float32 [samples_per_frame * n] of each mel [n, width]; those of one length together."""
        by_length: dict[int, list[int]] = {}
        for index, mel in enumerate(mels):
            by_length.setdefault(len(mel), []).append(index)
        samples: list[Tensor] = [mels[0].new_empty(0)] * len(mels)
        for length, indices in by_length.items():
            if length:
                made = self._decode(torch.stack([mels[index] for index in indices]))
                for index, each in zip(indices, made, strict=True):
                    samples[index] = each
        return samples

    def _decode(self, mels: Tensor) -> Tensor:
        """[utterances, samples] of [utterances, frames, width]; as the reference's `forward`,
        which takes one utterance only."""
        module = self._module
        rows = module.conv_pre(module.process_mel_spectrogram(mels.transpose(1, 2)))
        kinds = module.num_residual_blocks
        for index, (up,) in enumerate(module.ups):
            rows = up(rows)
            blocks = module.resblocks[index * kinds : (index + 1) * kinds]
            rows = sum(block(rows) for block in blocks) / kinds
        rows = module.conv_post(module.activation_post(rows))
        samples: Tensor = rows.clamp(-1.0, 1.0)[:, 0]
        return samples
