"""The vocoder: samples from mel frames.

It is not causal, and what it makes of a frame depends on some frames before and after. A piece
from the middle is made with `CONTEXT` frames more on either side, whose samples are dropped; at
the utterance's true ends nothing is added, as its padding there is part of the result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CONTEXT = 20
"""Frames on either side of a piece. The layers reach 26; what the last 6 add is below 1e-7."""
PIECE_FRAMES = 240
"""Longer mels are made in pieces, so that neither time nor memory of a call grows with speech."""
CALL_FRAMES = 2 * (PIECE_FRAMES + 2 * CONTEXT)
"""Most frames of a call, over all its pieces."""
ROWS_OF_A_FRAME = 64
"""A frame counts as so many rows of a layer of the flow: roughly what it costs."""


@dataclass(frozen=True, slots=True)
class MelPiece:
    """Frames `start` to `stop` of mel number `mel`, made of frames `first` to `last`."""

    mel: int
    start: int
    stop: int
    first: int
    last: int


class MelVocoder:
    """`module` is Hugging Face's BigVGAN, in float32."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self.samples_per_frame = 1
        for rate in module.config.upsample_rates:
            self.samples_per_frame *= rate

    def decode(self, mels: Sequence[Tensor]) -> Generator[int, None, list[Tensor]]:
        """float32 [samples_per_frame * n] of each mel [n, width], call by call; what it gives on
        the way is how much was done, in rows. Pieces of one length are made together."""
        by_length: dict[int, list[MelPiece]] = {}
        for piece in (piece for index, mel in enumerate(mels) for piece in cut(index, len(mel))):
            by_length.setdefault(piece.last - piece.first, []).append(piece)
        each = self.samples_per_frame
        samples = [mel.new_empty(len(mel) * each) for mel in mels]
        for length, pieces in by_length.items():
            at_once = max(1, CALL_FRAMES // length)
            for call in (pieces[at : at + at_once] for at in range(0, len(pieces), at_once)):
                made = self._decode(torch.stack([mels[p.mel][p.first : p.last] for p in call]))
                for piece, row in zip(call, made, strict=True):
                    kept = slice(
                        (piece.start - piece.first) * each, (piece.stop - piece.first) * each
                    )
                    samples[piece.mel][piece.start * each : piece.stop * each] = row[kept]
                yield len(call) * length * ROWS_OF_A_FRAME
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


def cut(mel: int, frames: int) -> Iterator[MelPiece]:
    """The pieces of a mel of so many frames, each with its context."""
    for start in range(0, frames, PIECE_FRAMES):
        stop = min(start + PIECE_FRAMES, frames)
        yield MelPiece(mel, start, stop, max(0, start - CONTEXT), min(frames, stop + CONTEXT))
