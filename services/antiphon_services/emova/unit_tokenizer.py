"""Converts recordings to speech units.

The tokenizer consists of the SPIRAL encoder (arXiv 2201.10207) and a finite scalar quantizer. Each
unit covers 40 ms. Consecutive repetitions of a unit are removed. The durations that are lost in
this step are predicted by the decoder. All tensors have the shape [channels, n] and contain a
single recording.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, gelu, pad, relu, scaled_dot_product_attention

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import CONFIG_FILE, reading
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.transport.device_edge import host_array, on_device
from antiphon.values.chunk import Tensor as Array

PREFIX = "encoder."
INPUT_RATE_HZ = 16_000
LEAST_SAMPLES, MOST_S = 257, 60
"""The minimum number of samples in a recording, and the maximum duration in seconds.

Shorter recordings cannot be padded by reflection. The maximum is the same as in EMOVA's code.
"""

FFT, WINDOW, HOP = 512, 320, 160
EMPHASIS = 0.97
LEAST_POWER = 2**-24
CONSTANT = 1e-5
"""Added to the maximum sample and to standard deviations before dividing by them."""

LEVELS = 8
"""The number of levels for each quantized value.

A unit is a combination of four such values.
"""
NUMBERS = 4
ROUNDING = 1e-3
"""The margin that keeps values within the outer levels, relative to their range."""

LAYOUT = ("halving", "halving", "pointwise", "layers", "same", "pointwise", "layers")
"""The type of each block in the encoder."""
HEAD_WIDTH = 64

KEPT = ("encoder.wav2spec.featurizer.", "encoder.feature_encoder.", "pre_quant.")
"""The tensors that are used for inference. The remaining tensors are targets and heads that are
only used in training.
"""


class UnitEncoderSizes:
    """Tensor shapes of the encoder by name. The names do not include `PREFIX`."""

    def __init__(self, weights: Weights) -> None:
        names = [name for name in weights.files if name.startswith(PREFIX)]
        with weights.open() as reader:
            self._shapes = {
                name.removeprefix(PREFIX): tuple(reader.read(name).shape)
                for name in names
                if name.removeprefix(PREFIX).startswith(KEPT)
            }

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor. Raises `FailedPrecondition` if it does not exist."""
        if name not in self._shapes:
            raise FailedPrecondition(f"the checkpoint has no tensor {PREFIX}{name}")
        return self._shapes[name]

    def layers(self, stem: str) -> int:
        """Return the number of layers whose names start with `stem`."""
        stem = f"{stem}.layers."
        found = {name.removeprefix(stem).partition(".")[0] for name in self._shapes if stem in name}
        return len(found)


class UnitTokenizerModule(nn.Module):
    """The tensors below `encoder.` that are used for inference."""

    def __init__(self, sizes: UnitEncoderSizes) -> None:
        super().__init__()
        self.encoder = _Spiral(sizes)
        width = sizes.shape("pre_quant.weight")[1]
        self.pre_quant = nn.Linear(width, NUMBERS)

    def forward(self, samples: Tensor) -> Tensor:
        """Compute values of shape [n, 4] from samples of shape [m]."""
        rows = self.encoder.wav2spec(samples)
        rows = self.encoder.feature_encoder(rows)
        numbers: Tensor = self.pre_quant(rows.T)
        return numbers


class _Spiral(nn.Module):
    def __init__(self, sizes: UnitEncoderSizes) -> None:
        super().__init__()
        self.wav2spec = _LogMelSpectrum(sizes)
        self.feature_encoder = _SpiralBlocks(sizes)


class _SpiralBlocks(nn.Module):
    def __init__(self, sizes: UnitEncoderSizes) -> None:
        super().__init__()
        stem = "encoder.feature_encoder.block_modules"
        self.block_modules = nn.ModuleList(
            _SpiralTransformer(sizes, f"{stem}.{index}")
            if kind == "layers"
            else _SpiralConvolution(sizes, f"{stem}.{index}", halving=kind == "halving")
            for index, kind in enumerate(LAYOUT)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.block_modules:
            x = block(x)
        return x


class _LogMelSpectrum(nn.Module):
    """Computes log-mel magnitudes and normalizes each bin over the duration of the recording."""

    def __init__(self, sizes: UnitEncoderSizes) -> None:
        super().__init__()
        self.featurizer = _SpiralFeaturizer(sizes)

    def forward(self, samples: Tensor) -> Tensor:
        samples = samples * (1.0 / (samples.abs().max() + CONSTANT))
        samples = torch.cat((samples[:1], samples[1:] - EMPHASIS * samples[:-1]))
        window = self.featurizer.window.to(samples.dtype)
        spectrum = torch.stft(samples, FFT, HOP, WINDOW, window, return_complex=True)
        power = torch.view_as_real(spectrum).square().sum(-1).sqrt().square()
        made = (self.featurizer.fb[0].to(power) @ power + LEAST_POWER).log()
        made = made[:, : -(-len(samples) // HOP)]
        return (made - made.mean(1, keepdim=True)) / (made.std(1, keepdim=True) + CONSTANT)


class _SpiralFeaturizer(nn.Module):
    window: Tensor
    fb: Tensor

    def __init__(self, sizes: UnitEncoderSizes) -> None:
        super().__init__()
        for name in ("window", "fb"):
            shape = sizes.shape(f"encoder.wav2spec.featurizer.{name}")
            self.register_buffer(name, torch.zeros(shape))


class _SpiralConvolution(nn.Module):
    """A convolution followed by a normalization layer.

    If the kernel covers more than one row, an activation is applied to the result.
    """

    def __init__(self, sizes: UnitEncoderSizes, stem: str, *, halving: bool) -> None:
        super().__init__()
        outputs, inputs, kernel = sizes.shape(f"{stem}.conv.conv.weight")
        stride = 2 if halving else 1
        self.conv = nn.ModuleDict({"conv": nn.Conv1d(inputs, outputs, kernel, stride)})
        self.norm = nn.LayerNorm(outputs)
        self.halving, self.kernel = halving, kernel

    def forward(self, x: Tensor) -> Tensor:
        beside = self.kernel // 2
        # A strided convolution starts one row later. An odd number of rows is rounded up.
        if self.halving:
            x = pad(x, (beside - 1, beside + x.shape[1] % 2))
        else:
            x = pad(x, (beside, beside))
        made: Tensor = self.norm(self.conv["conv"](x).T).T
        return relu(made) if self.kernel > 1 else made


class _SpiralTransformer(nn.Module):
    """Transformer layers whose positional information comes from a convolution with a large
    kernel.
    """

    def __init__(self, sizes: UnitEncoderSizes, stem: str) -> None:
        super().__init__()
        width, by_group, kernel = sizes.shape(f"{stem}.pos_conv.0.weight_v")
        inner = sizes.shape(f"{stem}.layers.0.fc1.weight")[0]
        self.pos_conv = nn.ModuleList([_SpiralPositions(width, by_group, kernel)])
        self.layers = nn.ModuleList(_SpiralLayer(width, inner) for _ in range(sizes.layers(stem)))
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        rows = (x + self.pos_conv[0](x)).T
        for layer in self.layers:
            rows = layer(rows)
        out: Tensor = self.layer_norm(rows).T
        return out


class _SpiralPositions(nn.Module):
    """A grouped convolution whose weights have one length per kernel position."""

    def __init__(self, width: int, by_group: int, kernel: int) -> None:
        super().__init__()
        self.weight_g = nn.Parameter(torch.empty(1, 1, kernel))
        self.weight_v = nn.Parameter(torch.empty(width, by_group, kernel))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        width, by_group, kernel = self.weight_v.shape
        weight = self.weight_v * (self.weight_g / self.weight_v.norm(2, (0, 1), keepdim=True))
        padding, groups = kernel // 2, width // by_group
        return gelu(conv1d(x, weight, self.bias, padding=padding, groups=groups)[:, : x.shape[1]])


class _SpiralLayer(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.self_attn = nn.ModuleDict(
            {name: nn.Linear(width, width) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
        )
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)
        self.final_layer_norm = nn.LayerNorm(width)

    def forward(self, rows: Tensor) -> Tensor:
        normed, attention = self.self_attn_layer_norm(rows), self.self_attn
        parts = (attention["q_proj"], attention["k_proj"], attention["v_proj"])
        query, key, value = (
            made(normed).view(len(rows), -1, HEAD_WIDTH).transpose(0, 1) for made in parts
        )
        seen = scaled_dot_product_attention(query[None], key[None], value[None])[0]
        rows = rows + attention["out_proj"](seen.transpose(0, 1).reshape(rows.shape))
        out: Tensor = rows + self.fc2(gelu(self.fc1(self.final_layer_norm(rows))))
        return out


class UnitTokenizer:
    """Converts recordings to units."""

    def __init__(self, module: UnitTokenizerModule) -> None:
        self._module = module

    @torch.inference_mode()
    def units(self, samples: Array, *, reduced: bool = True) -> Array:
        """Return the units of a recording, as a uint16 array of shape [m] with values below 4096.

        `samples` is a float32 array of shape [n] at `INPUT_RATE_HZ`. By default, consecutive
        repetitions of a unit are removed. If `reduced` is false, the result contains one unit for
        every 40 ms. Raises `InvalidArgument` if the recording has fewer than `LEAST_SAMPLES`
        samples or is longer than `MOST_S` seconds.
        """
        if not LEAST_SAMPLES <= len(samples) <= MOST_S * INPUT_RATE_HZ:
            raise InvalidArgument(
                f"a recording must have from {LEAST_SAMPLES} samples to {MOST_S} s at "
                f"{INPUT_RATE_HZ} Hz, got {len(samples)} samples"
            )
        weight = self._module.pre_quant.weight
        given = on_device(samples.copy(), weight.device).to(weight.dtype)
        units = host_array(quantised(self._module(given).float())).astype("uint16")
        if not reduced:
            return units
        kept: Array = units[np.concatenate(([True], units[1:] != units[:-1]))]
        return kept


def quantised(numbers: Tensor) -> Tensor:
    """Quantize values of shape [n, 4] to int64 units of shape [n].

    Each value is rounded to one of `LEVELS` levels. The first value is the least significant digit.
    """
    half = (LEVELS - 1) * (1 - ROUNDING) / 2
    # Because the number of levels is even, zero lies between two levels.
    shift = torch.tan(torch.tensor(0.5 / half, device=numbers.device))
    levels = ((numbers + shift).tanh() * half - 0.5).round().long() + LEVELS // 2
    places = LEVELS ** torch.arange(NUMBERS, device=numbers.device)
    return (levels * places).sum(1)


def unused_tensors(weights: Weights) -> list[str]:
    """Return the names, without `PREFIX`, of the encoder tensors that are not loaded."""
    bare = (name.removeprefix(PREFIX) for name in weights.files if name.startswith(PREFIX))
    return [name for name in bare if not name.startswith(KEPT)]


def load_unit_tokenizer(
    weights: Weights, *, dtype: torch.dtype, device: torch.device
) -> UnitTokenizer:
    """Load the encoder of EMOVA's speech tokenizer.

    Raises `FailedPrecondition` if it cannot be loaded.
    """
    with reading(weights.folder / CONFIG_FILE):
        sizes = UnitEncoderSizes(weights)
    module = load_submodule(
        UnitTokenizerModule,
        sizes,
        PREFIX,
        weights,
        dtype=dtype,
        device=device,
        ignored=unused_tensors(weights),
    )
    return UnitTokenizer(module)
