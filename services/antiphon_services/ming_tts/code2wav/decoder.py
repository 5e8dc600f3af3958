"""Decodes latents to samples in pieces, with the same result as a single pass.

Each latent is upsampled to `LATENT_ROWS` rows, which are interpolated between neighboring latents.
The rows of a latent can therefore only be computed once the next latent has arrived. The rows are
processed by causal layers, whose keys and values are cached, and by an inverse transform with
overlapping windows.

A single call can decode pieces of many streams. Matrix products and normalization layers process
the rows of all streams as one sequence, without padding. Interpolation, attention and the overlap
of windows are computed separately for each stream. States are immutable. A call returns new states
and does not modify its arguments, so a failed call can be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, linear, scaled_dot_product_attention

from antiphon.pipelines.ming_tts import LATENT_ROWS, ROW_SAMPLES
from antiphon_services.ming_tts.code2wav.module import WINDOW_ROWS, AudioDecoderModule

LARGEST_MAGNITUDE = 1e2
WINDOW_SAMPLES = WINDOW_ROWS * ROW_SAMPLES
OVERLAP_SAMPLES = WINDOW_SAMPLES - ROW_SAMPLES
PAD_SAMPLES = OVERLAP_SAMPLES // 2

Past = tuple[Tensor, Tensor]
"""The keys and the values of a layer, each of shape [1, heads, rows, head width]."""


@dataclass(frozen=True, slots=True)
class StreamingUpsample:
    """Upsamples latents of shape [1, n, width] to rows of shape [1, 4 * latents, width].

    Rows are interpolated linearly between the centers of latents. At both ends, they are constant.
    The rows of the last latent are returned together with the rows of the next latent, or at the
    end of the stream. `kept` contains the latents that the next piece requires. The rows of the
    first `before` of these latents have already been returned.
    """

    kept: Tensor
    before: int = 0

    def advance(self, latents: Tensor, *, finished: bool) -> tuple[Tensor, StreamingUpsample]:
        """Return the rows that are complete and the next state."""
        joined = torch.cat((self.kept, latents), 1)
        first, count = self.before, joined.shape[1]
        stop = count if finished else count - 1
        if stop <= first:
            return joined.new_zeros(1, 0, joined.shape[2]), StreamingUpsample(joined, first)
        rows = interpolate(
            joined.transpose(1, 2), scale_factor=LATENT_ROWS, mode="linear", align_corners=False
        ).transpose(1, 2)
        # The next piece requires the last latent whose rows have been returned, and all later ones.
        return (
            rows[:, first * LATENT_ROWS : stop * LATENT_ROWS],
            StreamingUpsample(joined[:, stop - 1 :], 1),
        )


@dataclass(frozen=True, slots=True)
class StreamingInverse:
    """Combines windows that overlap by three quarters. Each row contributes `ROW_SAMPLES` samples.

    The samples of the last one and a half rows have to wait for later rows ("same" padding). `sums`
    contains the sums of the frames and of the weights, as a float tensor of shape [2,
    `OVERLAP_SAMPLES`]. `skipped` is the number of samples at the start of the stream that are still
    to be dropped.
    """

    sums: Tensor
    skipped: int = PAD_SAMPLES

    def advance(
        self, frames: Tensor, weights: Tensor, *, finished: bool
    ) -> tuple[Tensor, StreamingInverse]:
        """Return the float samples, of shape [n], that no later row can change, and the next state.

        `frames` contains windowed samples, as a float tensor of shape [rows, `WINDOW_SAMPLES`].
        `weights` contains the squares of the window, with shape [`WINDOW_SAMPLES`].
        """
        count = len(frames)
        both = torch.stack((frames, weights.expand_as(frames))).transpose(1, 2)
        length = ROW_SAMPLES * count + OVERLAP_SAMPLES
        sums = torch.nn.functional.fold(
            both, (1, length), (1, WINDOW_SAMPLES), stride=(1, ROW_SAMPLES)
        )[:, 0, 0]
        sums[:, :OVERLAP_SAMPLES] += self.sums
        whole = ROW_SAMPLES * count
        stop = length - PAD_SAMPLES if finished else whole
        skipped = min(self.skipped, stop)
        added, weight = sums[:, skipped:stop]
        samples: Tensor = added / weight
        return samples, StreamingInverse(sums[:, whole:].clone(), self.skipped - skipped)


@dataclass(frozen=True, slots=True)
class StreamState:
    """The state that a stream requires for its next piece.

    `rows` is the number of rows that the layers have processed.
    """

    upsample: StreamingUpsample
    inverse: StreamingInverse
    past: tuple[Past, ...]
    rows: int = 0


@dataclass(frozen=True, slots=True)
class LatentPiece:
    """The next latents of a stream, of shape [n, 64].

    `finished` is true for the last piece, in which n can be 0.
    """

    state: StreamState
    latents: Tensor
    finished: bool


@dataclass(frozen=True, slots=True)
class _Span:
    """The rows of one stream in a call.

    `mask` is a boolean tensor of shape [rows, keys], which is True if a row attends to a key.
    """

    rows: slice
    mask: Tensor


class AudioDecoder:
    """The decoder. It does not have any state, so all streams can share it."""

    def __init__(self, module: AudioDecoderModule) -> None:
        self._module: Any = module
        self.device = module.fc1.weight.device
        self._window = torch.hann_window(WINDOW_SAMPLES, device=self.device)
        self._weights = self._window.square()

    def new_stream(self) -> StreamState:
        """Create the state of a new stream."""
        attention = self._module.decoder.layers[0].self_attn
        heads = attention.k_proj.out_features // attention.head_dim
        kept = self._module.fc1.weight.new_zeros(1, 0, self._module.fc1.out_features)
        past = kept.new_zeros(1, heads, 0, attention.head_dim)
        sums = self._window.new_zeros(2, OVERLAP_SAMPLES)
        return StreamState(
            StreamingUpsample(kept),
            StreamingInverse(sums),
            ((past, past),) * self._module.layer_count,
        )

    @torch.inference_mode()
    def advance(self, pieces: Sequence[LatentPiece]) -> list[tuple[Tensor, StreamState]]:
        """Return the float32 samples, of shape [m], that each piece completes, and its next state.

        There must be at least one piece.
        """
        latents = self._module.fc1(torch.cat([piece.latents for piece in pieces])[None])
        parts = torch.split_with_sizes(latents, [len(piece.latents) for piece in pieces], 1)
        upsampled = [
            piece.state.upsample.advance(part, finished=piece.finished)
            for piece, part in zip(pieces, parts, strict=True)
        ]
        counts = [rows.shape[1] for rows, _ in upsampled]
        states = [piece.state for piece in pieces]
        working = [index for index, count in enumerate(counts) if count]
        made: dict[int, tuple[Tensor, tuple[Past, ...]]] = {}
        if working:
            rows, pasts = self._through(
                torch.cat([upsampled[index][0] for index in working], 1),
                [states[index] for index in working],
                [counts[index] for index in working],
            )
            frames = torch.split_with_sizes(
                self._frames(rows), [counts[index] for index in working]
            )
            made = dict(zip(working, zip(frames, pasts, strict=True), strict=True))
        results: list[tuple[Tensor, StreamState]] = []
        for index, (piece, (_, upsample)) in enumerate(zip(pieces, upsampled, strict=True)):
            state = piece.state
            if index not in made:
                waiting = StreamState(upsample, state.inverse, state.past, state.rows)
                results.append((self._window.new_zeros(0), waiting))
                continue
            own, past = made[index]
            samples, inverse = state.inverse.advance(own, self._weights, finished=piece.finished)
            following = StreamState(upsample, inverse, past, state.rows + counts[index])
            results.append((samples, following))
        return results

    def _frames(self, rows: Tensor) -> Tensor:
        """Convert the output of the layers, of shape [1, rows, width], to windows of samples.

        The result is a float tensor of shape [rows, `WINDOW_SAMPLES`].
        """
        states = self._module.decoder.norm(rows)
        magnitudes, phases = self._module.head.out(states)[0].float().chunk(2, 1)
        spectra = torch.polar(magnitudes.exp().clamp(max=LARGEST_MAGNITUDE), phases)
        frames: Tensor = torch.fft.irfft(spectra, n=WINDOW_SAMPLES) * self._window
        return frames

    def _through(
        self, rows: Tensor, states: Sequence[StreamState], counts: Sequence[int]
    ) -> tuple[Tensor, list[tuple[Past, ...]]]:
        """Apply all layers to rows of shape [1, sum of counts, width].

        Also returns the new keys and values of each stream.
        """
        positions = torch.cat(
            [
                torch.arange(state.rows, state.rows + count)
                for state, count in zip(states, counts, strict=True)
            ]
        ).to(rows.device)
        turns = self._module.decoder.rotary_emb(rows, positions[None])
        spans, start = [], 0
        for state, count in zip(states, counts, strict=True):
            mask = self._mask(count, state.past[0][0].shape[2] + count, rows.device)
            spans.append(_Span(slice(start, start + count), mask))
            start += count
        pasts: list[list[Past]] = [[] for _ in states]
        for number, layer in enumerate(self._module.decoder.layers):
            before = [state.past[number] for state in states]
            normed = layer.input_layernorm(rows)
            attended, kept = self._attend(layer.self_attn, normed, turns, before, spans)
            for own, past in zip(pasts, kept, strict=True):
                own.append(past)
            rows = rows + attended
            rows = rows + layer.mlp(layer.post_attention_layernorm(rows))
        return rows, [tuple(own) for own in pasts]

    def _attend(
        self,
        attention: Any,
        normed: Tensor,
        turns: tuple[Tensor, Tensor],
        before: Sequence[Past],
        spans: Sequence[_Span],
    ) -> tuple[Tensor, list[Past]]:
        """Compute attention. The rows of a stream attend to its own past and to themselves."""
        shape = (*normed.shape[:2], -1, attention.head_dim)
        queries, keys, values = (
            each(normed).view(shape).transpose(1, 2)
            for each in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        queries, keys = _turned(queries, *turns), _turned(keys, *turns)
        mixed, kept = [], []
        for (past_keys, past_values), span in zip(before, spans, strict=True):
            own_keys = torch.cat((past_keys, keys[:, :, span.rows]), 2)
            own_values = torch.cat((past_values, values[:, :, span.rows]), 2)
            mixed.append(
                scaled_dot_product_attention(
                    queries[:, :, span.rows],
                    own_keys,
                    own_values,
                    attn_mask=span.mask,
                    scale=attention.scaling,
                    enable_gqa=True,
                )
            )
            window = self._module.window
            start = max(0, own_keys.shape[2] - (window - 1)) if window else 0
            kept.append((own_keys[:, :, start:], own_values[:, :, start:]))
        together = torch.cat(mixed, 2).transpose(1, 2).flatten(2)
        return linear(together, attention.o_proj.weight), kept

    def _mask(self, rows: int, keys: int, device: torch.device) -> Tensor:
        """Return a boolean tensor of shape [rows, keys], which is True if a row attends to a
        key.
        """
        key = torch.arange(keys, device=device)
        row = torch.arange(keys - rows, keys, device=device)[:, None]
        seen = key <= row
        return seen & (key > row - self._module.window) if self._module.window else seen


def _turned(heads: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate heads [1, heads, n, width] by cosines and sines [1, n, width]."""
    low, high = heads.chunk(2, -1)
    return heads * cosines[:, None] + torch.cat((-high, low), -1) * sines[:, None]
