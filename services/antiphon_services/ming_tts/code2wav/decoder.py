"""Decodes latents to samples, piece by piece; the pieces, joined, are those of one pass.

A latent makes `LATENT_ROWS` rows, interpolated between its neighbours, so it waits for the next
one. The rows pass causal layers, whose keys and values are kept, and an inverse transform, whose
windows overlap.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate, linear, scaled_dot_product_attention
from transformers.models.qwen2.modeling_qwen2 import apply_rotary_pos_emb

from antiphon.pipelines.ming_tts import LATENT_ROWS, ROW_SAMPLES
from antiphon_services.ming_tts.code2wav.module import WINDOW_ROWS, AudioDecoderModule

LARGEST_MAGNITUDE = 1e2


class StreamingUpsample:
    """Rows [1, 4 * latents, width] of latents [1, n, width]: linear between centres, the ends flat.

    Rows of the last latent come with the next one, or at the end.
    """

    def __init__(self) -> None:
        self._kept: Tensor | None = None
        self._before = 0

    def advance(self, latents: Tensor, *, finished: bool) -> Tensor:
        """The rows that are complete."""
        joined = latents if self._kept is None else torch.cat((self._kept, latents), 1)
        first, count = self._before, joined.shape[1]
        stop = count if finished else count - 1
        if stop <= first:
            self._kept = joined
            return joined.new_zeros(1, 0, joined.shape[2])
        rows = interpolate(
            joined.transpose(1, 2), scale_factor=LATENT_ROWS, mode="linear", align_corners=False
        ).transpose(1, 2)
        # The next piece needs the last latent whose rows are out, and those that are not.
        self._kept, self._before = joined[:, stop - 1 :], 1
        return rows[:, first * LATENT_ROWS : stop * LATENT_ROWS]


class StreamingInverse:
    """Samples of spectra whose windows overlap by three quarters; a row gives `ROW_SAMPLES`.

    The samples of the last one and a half rows wait for later rows ("same" padding).
    """

    def __init__(self, device: torch.device) -> None:
        size = WINDOW_ROWS * ROW_SAMPLES
        self._window = torch.hann_window(size, device=device)
        self._pad = (size - ROW_SAMPLES) // 2
        self._skipped = self._pad
        self._sums = torch.zeros(2, size - ROW_SAMPLES, device=device)

    def advance(self, spectra: Tensor, *, finished: bool) -> Tensor:
        """float [n] of complex [rows, bins]: the samples that no later row changes."""
        size, count = len(self._window), len(spectra)
        length = ROW_SAMPLES * count + self._sums.shape[1]
        sums = self._sums.new_zeros(2, length)
        if count:
            frames = torch.fft.irfft(spectra, n=size) * self._window
            weights = self._window.square().expand(count, size)
            both = torch.stack((frames, weights)).transpose(1, 2)
            sums = torch.nn.functional.fold(both, (1, length), (1, size), stride=(1, ROW_SAMPLES))
            sums = sums[:, 0, 0]
        sums[:, : self._sums.shape[1]] += self._sums
        whole = ROW_SAMPLES * count
        self._sums = sums[:, whole:].clone()
        stop = length - self._pad if finished else whole
        skipped = min(self._skipped, stop)
        self._skipped -= skipped
        added, weight = sums[:, skipped:stop]
        samples: Tensor = added / weight
        return samples


class AudioStream:
    """One stream of latents; `advance` must be called in order and ends with `finished`."""

    def __init__(self, module: AudioDecoderModule) -> None:
        self._module: Any = module
        self._upsample = StreamingUpsample()
        self._inverse = StreamingInverse(module.fc1.weight.device)
        self._past: list[tuple[Tensor, Tensor] | None] = [None] * module.layer_count
        self._rows = 0

    @torch.inference_mode()
    def advance(self, latents: Tensor, *, finished: bool) -> Tensor:
        """float32 [m]: the samples that latents [n, 64] complete; n is at least 1."""
        module = self._module
        rows = self._upsample.advance(module.fc1(latents[None]), finished=finished)
        if not rows.shape[1]:
            return rows.new_zeros(0)
        states = module.decoder.norm(self._through(rows))
        magnitudes, phases = module.head.out(states)[0].float().chunk(2, 1)
        spectra = torch.polar(magnitudes.exp().clamp(max=LARGEST_MAGNITUDE), phases)
        return self._inverse.advance(spectra, finished=finished)

    def _through(self, rows: Tensor) -> Tensor:
        """Apply all layers to rows; the layers store their keys and values."""
        count = rows.shape[1]
        positions = torch.arange(self._rows, self._rows + count, device=rows.device)
        turns = self._module.decoder.rotary_emb(rows, positions[None])
        self._rows += count
        for number, layer in enumerate(self._module.decoder.layers):
            attended = self._attend(number, layer.self_attn, layer.input_layernorm(rows), turns)
            rows = rows + attended
            rows = rows + layer.mlp(layer.post_attention_layernorm(rows))
        return rows

    def _attend(
        self, number: int, attention: Any, normed: Tensor, turns: tuple[Tensor, Tensor]
    ) -> Tensor:
        shape = (*normed.shape[:2], -1, attention.head_dim)
        queries, keys, values = (
            each(normed).view(shape).transpose(1, 2)
            for each in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        queries, keys = apply_rotary_pos_emb(queries, keys, *turns)
        past = self._past[number]
        if past is not None:
            keys, values = torch.cat((past[0], keys), 2), torch.cat((past[1], values), 2)
        window = self._module.window
        kept = min(keys.shape[2], window - 1) if window else keys.shape[2]
        start = keys.shape[2] - kept
        self._past[number] = (keys[:, :, start:], values[:, :, start:])
        mask = self._mask(queries.shape[2], keys.shape[2], normed.device)
        mixed = scaled_dot_product_attention(
            queries, keys, values, attn_mask=mask, scale=attention.scaling, enable_gqa=True
        )
        return linear(mixed.transpose(1, 2).flatten(2), attention.o_proj.weight)

    def _mask(self, rows: int, keys: int, device: torch.device) -> Tensor:
        """bool [rows, keys], True where a row sees a key."""
        key = torch.arange(keys, device=device)
        row = torch.arange(keys - rows, keys, device=device)[:, None]
        seen = key <= row
        return seen & (key > row - self._module.window) if self._module.window else seen
