"""The flow-matching model, which computes the latents of a complete answer from its codes.

Each code corresponds to four latents. The velocity is evaluated 18 times. Each evaluation processes
all rows twice, once with the codes and once without them. The rows of the voice recording are
included. Because every row attends to every other row, each latent depends on all of the codes, so
computation can only start after the last code has arrived.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, gelu, layer_norm, linear, scaled_dot_product_attention, silu

from antiphon_services.covo_audio.code2wav.module import AnswerFlowModule
from antiphon_services.covo_audio.code2wav.voice_files import VoicePrompt
from antiphon_services.flow.layer import NORM_EPSILON
from antiphon_services.flow.midpoint import MidpointSteps
from antiphon_services.flow.normal_draws import normal_draws
from antiphon_services.flow.work import Work

POINTS = 10
GUIDANCE = 1.0
"""The values of `s_steps` and `cfg_alpha` in the vendor's configuration. Checkpoints do not contain
them.
"""
LONGEST_PERIOD = 10_000


class AnswerFlow:
    """Computes latents in the voice of a recording.

    `module` provides the float32 weights. `voice` is the recording whose voice is used for all
    answers.
    """

    def __init__(self, module: AnswerFlowModule, voice: VoicePrompt) -> None:
        sizes = module.sizes
        self.width, self.latent, self.per_code = sizes.width, sizes.latent, sizes.upsampling
        self.device = module.cond_proj.weight.device
        self._module: Any = module
        self._heads = sizes.width // sizes.head_dim
        self._codes = torch.from_numpy(voice.codes).to(self.device)
        self._prompt = torch.from_numpy(voice.latents).to(self.device)
        self._steps = MidpointSteps.between(torch.linspace(0, 1, POINTS))
        conditions = self._conditions(torch.from_numpy(voice.speaker).to(self.device))
        blocks: Any = module.blocks
        self._changes = [block.modulation_layer[1](conditions) for block in blocks]
        output: Any = module.output_layer
        self._last_changes: Tensor = output.adaLN_modulation[1](conditions)
        self._token_weight, self._prompt_weight, self._noisy_weight = torch.split(
            module.transformer_input_proj.weight, [self.width, self.latent, self.latent], dim=1
        )

    def rows(self, codes: int) -> int:
        """Return the number of rows for an answer with `codes` codes, including the rows of the
        voice.
        """
        return self.per_code * (len(self._codes) + codes)

    def latents(self, codes: Tensor, key: int) -> Work[Tensor]:
        """Compute the latents of an answer and yield the amount of work done.

        `codes` is an int64 tensor of shape [m]. The result has shape [n, width], where n is at most
        4 * m. If the voice recording has more latents than its codes account for, the first latents
        of the answer are missing. `key` determines the noise.
        """
        all_codes = torch.cat((self._codes, codes))
        count = self.rows(len(codes))
        noise = normal_draws(key, 0, count * self.latent).reshape(count, self.latent)
        module = self._module
        embedded = module.token_proj[0](module.token_embedding(all_codes))
        tokens = module.token_proj[1](embedded.T[None])[0].T
        known = tokens.new_zeros(count, self.latent)
        kept = min(len(self._prompt), count)
        known[:kept] = self._prompt[:kept]
        # Only the noisy latents change between evaluations, so everything else is computed once.
        without = linear(known, self._prompt_weight, module.transformer_input_proj.bias)
        fixed = torch.stack((without, without + linear(tokens, self._token_weight)))
        turns = self._turns(count)

        def velocity(evaluation: int, value: Tensor) -> Work[Tensor]:
            rows = fixed + linear(value, self._noisy_weight)
            unguided, guided = yield from self._evaluate(rows, evaluation, turns)
            mixed: Tensor = guided + (guided - unguided) * GUIDANCE
            return mixed

        made = yield from self._steps.solve(velocity, torch.from_numpy(noise).to(self.device))
        spoken: Tensor = made[len(self._prompt) :]
        return spoken

    def _evaluate(
        self, rows: Tensor, evaluation: int, turns: tuple[Tensor, Tensor]
    ) -> Work[Tensor]:
        """Return velocities of shape [2, n, latent] for rows of shape [2, n, width]."""
        module = self._module
        conv = module.conv_embed.conv
        placed = conv1d(rows.mT, conv.weight, conv.bias, padding=conv.padding, groups=conv.groups)
        rows = gelu(placed).mT + rows
        cost = 2 * rows.shape[1]
        for block, changes in zip(module.blocks, self._changes, strict=True):
            change = changes[evaluation].chunk(6)
            normed = _modulated(rows, change[0], change[1])
            rows = torch.addcmul(rows, change[2], self._attend(block.attn, normed, turns))
            normed = _modulated(rows, change[3], change[4])
            inner = gelu(block.ffn.fc1(normed), approximate="tanh")
            rows = torch.addcmul(rows, change[5], block.ffn.fc2(inner))
            yield cost
        shift, scale = self._last_changes[evaluation].chunk(2)
        velocities: Tensor = module.output_layer.linear(_modulated(rows, shift, scale))
        return velocities

    def _attend(self, attention: Any, rows: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        sequences, count, _ = rows.shape
        shape = sequences, count, self._heads, self.width // self._heads
        query, key, value = (
            projection(rows).view(shape).transpose(1, 2)
            for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        mixed = scaled_dot_product_attention(_turned(query, turns), _turned(key, turns), value)
        out: Tensor = attention.o_proj(mixed.transpose(1, 2).flatten(2))
        return out

    def _conditions(self, speaker: Tensor) -> Tensor:
        """Return the inputs of all modulations, as a tensor of shape [evaluations, width]."""
        times = self._steps.times.to(self.device)
        half = self._module.sizes.time_width // 2
        powers = torch.arange(half, dtype=torch.float32) / half
        angles = times[:, None] * torch.exp(-math.log(LONGEST_PERIOD) * powers).to(self.device)
        embedded = self._module.time_embedder.mlp(torch.cat((angles.cos(), angles.sin()), 1))
        both = torch.cat((embedded, speaker.expand(len(times), -1)), 1)
        return silu(self._module.cond_proj(both))

    def _turns(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines for `count` positions, each of shape [count, head_dim]."""
        frequencies = self._module.blocks[0].attn.rotary.inv_freq
        angles = torch.arange(count, device=self.device).float()[:, None] * frequencies
        angles = torch.cat((angles, angles), 1)
        return angles.cos(), angles.sin()


def _modulated(rows: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return layer_norm(rows, rows.shape[-1:], 1 + scale, shift, NORM_EPSILON)


def _turned(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    low, high = heads.chunk(2, -1)
    return heads * turns[0] + torch.cat((-high, low), -1) * turns[1]
