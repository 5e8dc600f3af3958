"""The flow-matching model, which computes mel frames from speech codes and a voice.

This module mirrors the vendor's `CausalMaskedDiffWithDiT.inference`. With `streaming=False`, every
frame attends to all frames of the prompt and the utterance. With `streaming=True`, frames are
grouped into blocks, starting at the first frame of the prompt, and each frame attends to its own
block and to earlier blocks. The two modes produce different audio. In both modes, the results match
the vendor's code, but values that it computes repeatedly are only computed once.

Terms that only depend on the time are computed when the model is loaded. Terms that only depend on
the codes and the voice are computed once per utterance. For classifier-free guidance, the
conditional and unconditional halves are evaluated in one batch. Like the vendor's code, all
utterances use the same noise buffer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, leaky_relu, linear, mish, normalize, pad, silu

from antiphon.pipelines.cosyvoice3 import FRAMES_PER_CODE, MOST_CODES
from antiphon_services.cosyvoice3.code2wav.flow_module import (
    POSITION_GROUPS,
    TIME_WIDTH,
    FlowModule,
)
from antiphon_services.flow.block_cache import BlockShape
from antiphon_services.flow.euler import EulerSteps
from antiphon_services.flow.layer import AllRows, LayerWeights, TimedLayer, modulated, rotation_of
from antiphon_services.flow.work import Work

STEPS = 10
HALVES = 2
MOST_FRAMES = FRAMES_PER_CODE * MOST_CODES
"""The maximum total number of frames in the prompt and the utterance. It is the length of the
noise.
"""
NOISE_SEED = 0


@dataclass(frozen=True, slots=True)
class ClonedVoice:
    """The voice of a recording, in which P can be 0.

    `speaker` is a float32 tensor of shape [1, width], `codes` is an int64 tensor of shape [P], and
    `mel` is a float32 tensor of shape [2 P, bins].
    """

    speaker: Tensor
    codes: Tensor
    mel: Tensor


class MelFlow:
    """Computes mel frames with the float32 weights of a `FlowModule`.

    `guidance` is the scale of classifier-free guidance, and `block_frames` is the number of frames
    in a block.
    """

    def __init__(
        self, module: FlowModule, *, heads: int, guidance: float, block_frames: int
    ) -> None:
        estimator: Any = module.decoder.estimator
        self._module: Any = module
        self._guidance = guidance
        weight: Tensor = estimator.proj_out.weight
        self.device, self.mel_width = weight.device, len(weight)
        self._steps = EulerSteps.cosine(STEPS)
        times = _time_rows(self._steps.times).to(self.device)
        embedding = silu(estimator.time_embed.time_mlp(times))
        self._layers = [
            _layer(each, embedding, heads, number)
            for number, each in enumerate(estimator.transformer_blocks)
        ]
        self._head_dim = len(estimator.transformer_blocks[0].attn.to_q.weight) // heads
        self.block = BlockShape(
            STEPS, len(self._layers), HALVES, block_frames, heads, self._head_dim
        )
        self.look_ahead: int = self._module.pre_lookahead_layer.conv1.kernel_size[0] - 1
        scale, shift = estimator.norm_out.linear(embedding).chunk(2, dim=1)
        self._last_norm = (1 + scale, shift)
        self._out = (weight, estimator.proj_out.bias)
        # The reference implementation concatenates the frame, the condition, the code and the
        # speaker, in this order.
        projection = estimator.input_embed.proj
        widths = (self.mel_width, projection.in_features - self.mel_width)
        self._frame_in, self._given_in = projection.weight.split(widths, dim=1)
        self._bias = projection.bias
        convolutions = estimator.input_embed.conv_pos_embed
        self._position_convs = [
            (each[0].weight, each[0].bias) for each in (convolutions.conv1, convolutions.conv2)
        ]
        generator = torch.Generator().manual_seed(NOISE_SEED)
        noise = torch.randn([1, self.mel_width, MOST_FRAMES], generator=generator)
        self._noise = noise[0].T.to(self.device)

    def run(self, voice: ClonedVoice, codes: Tensor) -> Work[Tensor]:
        """Compute mel frames of shape [2 n, bins] from int64 codes of shape [n].

        Every frame attends to all other frames. The generator yields the amount of work done.
        """
        prompt = len(voice.mel)
        rows = AllRows(0, prompt + FRAMES_PER_CODE * len(codes))
        return (yield from self.run_rows(voice, codes, rows))[prompt:]

    def run_rows(self, voice: ClonedVoice, codes: Tensor, among: AllRows) -> Work[Tensor]:
        """Compute the frames of the prompt and the codes that `among` selects, as a tensor of shape
        [n, bins].

        The frames of the last `look_ahead` codes are only valid if no more codes follow.
        """
        given = self._given(voice, codes, among)
        rotation = rotation_of(among.first, among.stop, self._head_dim, self.device)

        def velocity(evaluation: int, value: Tensor) -> Work[Tensor]:
            rows = linear(value, self._frame_in) + given
            rows = rows + self._positions(rows, evaluation, among)
            for layer in self._layers:
                rows = layer.forward(rows, evaluation, rotation, among)
                yield HALVES * len(value)
            rows = linear(modulated(rows, self._last_norm, evaluation), *self._out)
            guided, free = rows
            mixed: Tensor = (1 + self._guidance) * guided - self._guidance * free
            return mixed

        return (yield from self._steps.solve(velocity, self._noise[among.first : among.stop]))

    def _given(self, voice: ClonedVoice, codes: Tensor, among: AllRows) -> Tensor:
        """Return the contribution of the codes and the voice to the input of the first layer.

        The result has shape [HALVES, frames, width].
        """
        module = self._module
        speaker = module.spk_embed_affine_layer(normalize(voice.speaker, dim=1))
        rows = self._look_ahead(module.input_embedding(torch.cat((voice.codes, codes))))
        rows = rows.repeat_interleave(FRAMES_PER_CODE, dim=0)[among.first : among.stop]
        condition = voice.mel[among.first : among.stop]
        condition = pad(condition, (0, 0, 0, len(rows) - len(condition)))
        joined = torch.cat((condition, rows, speaker.expand(len(rows), -1)), dim=1)
        given = linear(joined, self._given_in)
        both: Tensor = torch.stack((given, torch.zeros_like(given))) + self._bias
        return both

    def _look_ahead(self, rows: Tensor) -> Tensor:
        """Apply the look-ahead layer to rows of shape [n, width], which are padded with zeros at
        the end.
        """
        layer = self._module.pre_lookahead_layer
        ahead, behind = layer.conv1.kernel_size[0] - 1, layer.conv2.kernel_size[0] - 1
        inner = leaky_relu(layer.conv1(pad(rows.T, (0, ahead))))
        changed: Tensor = layer.conv2(pad(inner, (behind, 0)))
        made: Tensor = rows + changed.T
        return made

    def _positions(self, rows: Tensor, evaluation: int, among: AllRows) -> Tensor:
        """Return the convolutional position embedding for rows of shape [HALVES, n, width]."""
        x = rows.transpose(1, 2)
        for number, (weight, bias) in enumerate(self._position_convs):
            x = among.preceded(x, evaluation, number, weight.shape[2] - 1)
            x = mish(conv1d(x, weight, bias, groups=POSITION_GROUPS))
        return x.transpose(1, 2)


def _layer(block: Any, embedding: Tensor, heads: int, number: int) -> TimedLayer[int]:
    up, _, down = block.ff.ff
    return TimedLayer(LayerWeights.of_block(block, embedding, up[0], down), heads, number)


def _time_rows(times: Tensor) -> Tensor:
    """Return the sinusoidal embedding of times, whose shape is [n], as [n, TIME_WIDTH]."""
    half = TIME_WIDTH // 2
    rates = torch.exp(torch.arange(half).float() * -(math.log(10_000) / (half - 1)))
    angles = 1000 * times[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), dim=-1)
