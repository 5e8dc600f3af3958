"""The vocoder, which turns mel frames into samples.

The vocoder isn't causal: a frame's samples depend on some of the frames before and after it. When a
piece from the middle of an utterance is computed, `CONTEXT` frames are therefore added on both
sides, and their samples are dropped. No frames are added at the beginning and the end of an
utterance, where the vocoder's own padding is part of the result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from antiphon_services.lm.graphs import Bucketing, RowFunction

CONTEXT = 20
"""The number of frames added on both sides of a piece. The layers reach 26 frames, but the
outermost 6 contribute less than 1e-7.
"""
PIECE_FRAMES = 240
"""Longer mel spectrograms are computed in pieces of this length, so that the time and memory for a
call don't grow with the length of the speech.
"""
CALL_FRAMES = 2 * (PIECE_FRAMES + 2 * CONTEXT)
"""The maximum total number of frames in a call, across all pieces."""
LEAST_DB, REFERENCE_DB = -115, 20
"""Literals from the reference's `process_mel_spectrogram`."""
ROWS_OF_A_FRAME = 64
"""The approximate cost of a frame, expressed as a number of rows in a layer of the flow."""


@dataclass(frozen=True, slots=True)
class MelPiece:
    """The frames from `start` to `stop` of mel number `mel`. They are computed from the frames
    `first` to `last`.
    """

    mel: int
    start: int
    stop: int
    first: int
    last: int


class MelVocoder:
    """The vocoder. `module` is Hugging Face's BigVGAN in float32.

    If `bucketing` is given, CUDA graphs are used for pieces of the lengths that occur in streams
    with blocks of `block_frames` frames.
    """

    def __init__(
        self, module: Any, bucketing: Bucketing | None = None, block_frames: int = 0
    ) -> None:
        self._module = module
        # The value from `amplitude_to_db`. It is computed once here, because the function would
        # copy it to the device in each call.
        self._least = float(
            torch.exp(torch.tensor(LEAST_DB / 20.0 * np.log(10), dtype=torch.float32, device="cpu"))
        )
        self.samples_per_frame = 1
        for rate in module.config.upsample_rates:
            self.samples_per_frame *= rate
        self._runs: dict[int, RowFunction] = {}
        if bucketing is not None:
            like = module.conv_pre.weight
            # Capture the longest piece first, so that the others fit into its memory for
            # intermediate values.
            for length in reversed(stream_lengths(block_frames)):
                most = CALL_FRAMES // length
                buffer = like.new_zeros(most, length, module.config.mel_dim)
                self._runs[length] = bucketing(self._replayable, (buffer,), 1)

    def decode(self, mels: Sequence[Tensor]) -> Generator[int, None, list[Tensor]]:
        """Compute the samples (float32 [samples_per_frame * n]) of each mel [n, width], one call at
        a time.

        Yields the amount of work in rows. Pieces of the same length share calls.
        """
        by_length: dict[int, list[MelPiece]] = {}
        for piece in (piece for index, mel in enumerate(mels) for piece in cut(index, len(mel))):
            by_length.setdefault(piece.last - piece.first, []).append(piece)
        each = self.samples_per_frame
        samples = [mel.new_empty(len(mel) * each) for mel in mels]
        for length, pieces in by_length.items():
            at_once = max(1, CALL_FRAMES // length)
            for call in (pieces[at : at + at_once] for at in range(0, len(pieces), at_once)):
                rows = torch.stack([mels[p.mel][p.first : p.last] for p in call])
                run = self._runs.get(length)
                # The graph's output is copied below, before the next replay.
                (made,) = (self._decode(rows),) if run is None else run(rows)
                for piece, row in zip(call, made, strict=True):
                    kept = slice(
                        (piece.start - piece.first) * each, (piece.stop - piece.first) * each
                    )
                    samples[piece.mel][piece.start * each : piece.stop * each] = row[kept]
                yield len(call) * length * ROWS_OF_A_FRAME
        return samples

    def _replayable(self, mels: Tensor) -> tuple[Tensor]:
        return (self._decode(mels),)

    def _decode(self, mels: Tensor) -> Tensor:
        """Compute samples [utterances, samples] from mels [utterances, frames, width].

        The result is the same as that of the reference's `forward`, which only supports a single
        utterance.
        """
        module = self._module
        amplitudes = torch.exp(mels.transpose(1, 2)).clamp(min=self._least)
        loudness = 20 * torch.log10(amplitudes) - REFERENCE_DB
        rows = module.conv_pre(module.normalize_spectrogram(loudness, 1, LEAST_DB))
        kinds = module.num_residual_blocks
        for index, (up,) in enumerate(module.ups):
            rows = up(rows)
            blocks = module.resblocks[index * kinds : (index + 1) * kinds]
            rows = sum(block(rows) for block in blocks) / kinds
        rows = module.conv_post(module.activation_post(rows))
        samples: Tensor = rows.clamp(-1.0, 1.0)[:, 0]
        return samples


def stream_lengths(block_frames: int) -> list[int]:
    """Return the window lengths that occur in a stream whose blocks become final one by one, in
    ascending order.

    The first windows begin at the start of the utterance. As soon as there is enough context, each
    window consists of a block with context on both sides.
    """
    lengths, mel, context = set(), 0, 0
    steady = block_frames + 2 * CONTEXT
    while steady not in lengths:
        mel += block_frames
        leaving = mel - context - CONTEXT
        if leaving <= 0:
            continue
        lengths.add(mel)
        start = max(0, context + leaving - CONTEXT)
        mel, context = mel - start, context + leaving - start
    return sorted(lengths)


def cut(mel: int, frames: int) -> Iterator[MelPiece]:
    """Yield the pieces of a mel that has `frames` frames, each with its context."""
    for start in range(0, frames, PIECE_FRAMES):
        stop = min(start + PIECE_FRAMES, frames)
        yield MelPiece(mel, start, stop, max(0, start - CONTEXT), min(frames, stop + CONTEXT))
