"""The diffusion transformer, which turns noise and codes into mel frames. It uses Hugging Face's
weights.

Results are the same as in the reference, but nothing is computed more often than necessary. Terms
that depend only on the time are computed when the stage is loaded. These are the scales, shifts and
gates of each layer at each of the 36 evaluations. Terms that depend only on the codes and the
voice, which make up most of the input projection, are computed once per call, and the speaker
encoder runs once per voice. For classifier-free guidance, both halves are evaluated in one batch.
Attention only reads the keys of the blocks that a row attends to (see `blocks`).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from antiphon_services.flow.layer import LayerWeights, SeenRows, TimedLayer, modulated
from antiphon_services.flow.runge_kutta import RungeKuttaSteps
from antiphon_services.flow.work import Velocity, Work
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.rotary import Rotation
from antiphon_services.qwen2_5_omni.token2wav.blocks import (
    HALVES,
    BlockPlan,
    BlockSpan,
    BlockWindow,
    FlowMemory,
)
from antiphon_services.qwen2_5_omni.token2wav.flow_graphs import FlowGraphs, FlowSizes
from antiphon_services.qwen2_5_omni.token2wav.solver import EVALUATIONS, time_points

GUIDANCE = 0.5
NO_CODE = 0


@dataclass(frozen=True, slots=True)
class FlowVoice:
    """The term [HALVES, width] that a voice adds to the input of every row, once with and once
    without the voice.
    """

    offset: Tensor


@dataclass(frozen=True, slots=True)
class FlowPart:
    """Blocks of one utterance. `span` specifies the rows. `noise` has the shape [rows, mel], and
    `codes` is int64 [rows].
    """

    span: BlockSpan
    voice: FlowVoice
    noise: Tensor
    codes: Tensor


class Flow:
    """The flow. `module` is Hugging Face's diffusion transformer in float32.

    If `bucketing` is given, evaluations run as CUDA graphs.
    """

    def __init__(self, module: Any, bucketing: Bucketing | None = None) -> None:
        config = module.config
        self.block_frames: int = config.block_size
        self.frames_per_code: int = config.repeats
        self.mel_width: int = config.mel_dim
        self.most_frames: int = config.max_position_embeddings
        self.code_entries = int(module.text_embed.codec_embed.num_embeddings)
        weight: Tensor = module.proj_out.weight
        self.device = weight.device
        self._steps = RungeKuttaSteps.between(time_points())
        embedding = module.time_embed(self._steps.times.to(self.device))
        self._layers = tuple(_make_layers(module, embedding))
        looking = sum(each.window.looking is not None for each in self._layers)
        kept = (self.block_frames, config.num_attention_heads, config.head_dim)
        self._memory_size = (EVALUATIONS, looking, 2, HALVES, *kept)
        # The reference concatenates the inputs in this order: frame, voice, code, condition.
        widths = (config.mel_dim, config.enc_dim, config.emb_dim, config.enc_emb_dim)
        parts = module.input_embed.proj.weight.split(widths, dim=1)
        self._frame_in, self._voice_in, code_in, self._condition_in = parts
        self._bias: Tensor = module.input_embed.proj.bias
        self._code_rows = linear(module.text_embed.codec_embed.weight, code_in)
        self._encode = module.input_embed.spk_encoder
        scale, shift = module.norm_out.linear(silu(embedding)).chunk(2, dim=1)
        self._last_norm = (1 + scale, shift)
        self._out = (weight, module.proj_out.bias)
        self._rotary = module.rotary_embed
        self._graphs = bucketing and FlowGraphs(self.evaluate, self._sizes(config), bucketing)

    def voice(self, condition: Tensor, mel: Tensor) -> FlowVoice:
        """Return a voice, given its `condition` [1, width] and a reference `mel` [1,
        frames, mel].
        """
        both = torch.cat((mel, torch.zeros_like(mel)))
        offset = linear(self._encode(both), self._voice_in) + self._bias
        offset[0] += linear(condition[0], self._condition_in)
        return FlowVoice(offset)

    def memory(self) -> FlowMemory:
        """Return a memory for an utterance that is computed in pieces."""
        return FlowMemory(torch.zeros(self._memory_size, device=self.device))

    def run(self, parts: Sequence[FlowPart]) -> Generator[int, None, list[Tensor]]:
        """Compute the mel frames [rows, mel] of all parts together, layer by layer.

        The call changes the memories of the parts. If it isn't run to completion, their utterances
        must be ended.
        """
        plan = BlockPlan([each.span for each in parts], self.block_frames, self.device)
        velocity = self._velocity(plan, self._given(parts))
        frames = to_blocks([each.noise for each in parts], self.block_frames)
        frames = yield from self._steps.solve(velocity, frames)
        made = torch.split(frames, [each.span.count for each in parts])
        return [mel.flatten(0, 1)[: len(each.noise)] for mel, each in zip(made, parts, strict=True)]

    def evaluate(
        self,
        value: Tensor,
        given: Tensor,
        evaluation: int | Tensor,
        plan: SeenRows[BlockWindow],
        rotation: Rotation,
    ) -> Work[Tensor]:
        """Return the velocity at `value` [blocks, frames, mel].

        `given` [HALVES * blocks, frames, width] is the part of the input that depends on codes and
        voices, and `rotation` is the rotary embedding of all rows.
        """
        rows = linear(value, self._frame_in).repeat(HALVES, 1, 1) + given
        for layer in self._layers:
            rows = layer.forward(rows, evaluation, rotation, plan)
            yield rows.shape[0] * rows.shape[1]
        rows = modulated(rows, self._last_norm, evaluation)
        guided, free = linear(rows, *self._out).chunk(HALVES)
        return guided + (guided - free) * GUIDANCE

    def _velocity(self, plan: BlockPlan, given: Tensor) -> Velocity:
        """Return a call's velocity function. If there is a graph for the call, the function replays
        it.
        """
        cosines, sines = self._rotary(self._bias, plan.positions)
        if self._graphs is not None and self._graphs.takes(plan):
            return self._graphs.velocity(plan, given, (cosines, sines), len(self._layers))
        rotation = Rotation.of_rows(cosines.repeat(HALVES, 1, 1), sines.repeat(HALVES, 1, 1))

        def velocity(evaluation: int, value: Tensor) -> Work[Tensor]:
            return self.evaluate(value, given, evaluation, plan, rotation)

        return velocity

    def _sizes(self, config: Any) -> FlowSizes:
        return FlowSizes(
            self.block_frames,
            self.mel_width,
            len(self._bias),
            config.head_dim,
            self._memory_size[1:],
            self.device,
        )

    def _given(self, parts: Sequence[FlowPart]) -> Tensor:
        """Return the part of the input that depends on codes and voices [HALVES * blocks, frames,
        width].
        """
        codes = to_blocks([self._code_rows[each.codes] for each in parts], self.block_frames)
        nothing = self._code_rows[NO_CODE].expand_as(codes)
        offsets = [each.voice.offset[:, None].expand(-1, each.span.count, -1) for each in parts]
        return (torch.stack((codes, nothing)) + torch.cat(offsets, 1)[:, :, None]).flatten(0, 1)


def to_blocks(parts: Sequence[Tensor], frames: int) -> Tensor:
    """Concatenate parts [rows, width] to [blocks, frames, width] and pad each part's last block."""
    filled = [
        torch.cat((each, each.new_zeros(-len(each) % frames, each.shape[1]))) for each in parts
    ]
    joined = torch.cat(filled)
    return joined.view(-1, frames, joined.shape[1])


def _make_layers(module: Any, embedding: Tensor) -> Sequence[TimedLayer[BlockWindow]]:
    layers, looking = [], 0
    active = silu(embedding)
    for each in module.transformer_blocks:
        behind, mlp = bool(each.look_backward_block), each.ff.ff
        weights = LayerWeights.of_block(each, active, up=mlp[0], down=mlp[3])
        window = BlockWindow(looking if behind else None, bool(each.look_ahead_block))
        layers.append(TimedLayer(weights, each.attn.heads, window))
        looking += behind
    return layers
