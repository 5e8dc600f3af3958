"""silero's network in numpy: how probably a frame of 32 ms holds speech. Pure.

Spectrum, four convolutions, one LSTM cell. It equals onnxruntime's answers to 3e-6, which would
be 68 MB more in the image. All but the cell sees each frame by itself, so several frames of many
conversations go through it at once, in products of two matrices: numpy makes one for each first
index of products of more dimensions. 32 frames together take a third of the time of 32 alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from antiphon.chunk import Tensor

RATE_HZ = 16_000
FRAME_SAMPLES = 512
FRAME_S = FRAME_SAMPLES / RATE_HZ
CONTEXT_SAMPLES = 64
"""Of the frame before, which each frame is seen with."""
SEEN_SAMPLES = CONTEXT_SAMPLES + FRAME_SAMPLES

_HOP, _WINDOW, _BINS = 128, 256, 129
_STEPS = 4
_MIRRORED = _HOP * (_STEPS - 1) + _WINDOW - SEEN_SAMPLES
_STRIDES = (1, 2, 2, 1)
_UNITS = 128


def no_memory() -> Tensor:
    """What the network knows before the first frame."""
    return np.zeros(2 * _UNITS, np.float32)


class VoiceNetwork:
    """The network with its weights, by name."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._basis = np.ascontiguousarray(weights["stft"][:, 0].T)
        layers = [(weights[f"encoder.{i}.weight"], weights[f"encoder.{i}.bias"]) for i in range(4)]
        # Three taps of all channels, for windows that are laid out in this order.
        first, self._first_bias = layers[0]
        self._first = np.ascontiguousarray(first.transpose(2, 1, 0).reshape(-1, len(first)))
        self._layers, steps = [], _STEPS
        for (weight, bias), stride in zip(layers[1:], _STRIDES[1:], strict=True):
            self._layers.append(_of_all_steps(weight, bias, steps, stride))
            steps = (steps - 1) // stride + 1
        # Those with a sigmoid first: they enter, forget and leave; then the new values.
        order = np.concatenate([np.r_[: 2 * _UNITS, 3 * _UNITS : 4 * _UNITS], np.r_[256:384]])
        self._input = np.ascontiguousarray(weights["lstm.input"][order].T)
        self._hidden = np.ascontiguousarray(weights["lstm.hidden"][order].T)
        self._bias = (weights["lstm.input_bias"] + weights["lstm.hidden_bias"])[order]
        self._output = weights["output"][0, :, 0]
        self._output_bias = weights["output_bias"]

    def hear(
        self, sounds: Sequence[Tensor], memories: Sequence[Tensor]
    ) -> tuple[list[list[float]], list[Tensor]]:
        """The probability of each frame of several conversations, and what to give with the next
        ones of each.

        `sounds` are, for each, its next frames [frames, SEEN_SAMPLES], which need not be as many as
        another's; at least one.
        """
        counts = np.array([len(each) for each in sounds])
        seen = self._encoded(np.concatenate(sounds)) @ self._input
        seen += self._bias
        # Who has more frames comes first: each step is of the first so many.
        order = np.argsort(-counts, kind="stable")
        rows = (np.cumsum(counts) - counts)[order]
        memory = np.stack([memories[each] for each in order])
        hidden, cell = memory[:, :_UNITS], memory[:, _UNITS:]
        heard = np.empty((len(seen), _UNITS), np.float32)
        for step in range(counts.max()):
            going = int(np.count_nonzero(counts > step))
            at = rows[:going] + step
            heard[at], cell[:going] = self._cell(seen[at], hidden[:going], cell[:going])
            hidden[:going] = heard[at]
        spoken = _sigmoid(np.maximum(heard, 0) @ self._output + self._output_bias).tolist()
        after = np.empty_like(memory)
        after[order] = memory
        ends = np.cumsum(counts).tolist()
        return [
            spoken[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)
        ], list(after)

    def _encoded(self, sound: Tensor) -> Tensor:
        """[frames, samples] to [frames, units]."""
        frames = len(sound)
        windows = np.empty((frames, _STEPS, _WINDOW), np.float32)
        for step in range(_STEPS - 1):
            windows[:, step] = sound[:, _HOP * step : _HOP * step + _WINDOW]
        windows[:, -1, :-_MIRRORED] = sound[:, _HOP * (_STEPS - 1) :]
        windows[:, -1, -_MIRRORED:] = sound[:, -2 : -2 - _MIRRORED : -1]
        spectrum = windows.reshape(-1, _WINDOW) @ self._basis
        np.square(spectrum, out=spectrum)
        # A step of nothing at both ends.
        padded = np.zeros((frames, _STEPS + 2, _BINS), np.float32)
        real, imaginary = spectrum.reshape(frames, _STEPS, 2, _BINS).transpose(2, 0, 1, 3)
        np.sqrt(real + imaginary, out=padded[:, 1:-1])
        taps = np.ndarray((frames, _STEPS, 3 * _BINS), np.float32, padded, strides=padded.strides)
        values = taps.reshape(-1, 3 * _BINS) @ self._first
        values += self._first_bias
        values = np.maximum(values, 0, out=values).reshape(frames, -1)
        for weight, bias in self._layers:
            values = values @ weight
            values += bias
            np.maximum(values, 0, out=values)
        return np.asarray(values)

    def _cell(self, seen: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        gates = hidden @ self._hidden
        gates += seen
        # np.split takes as long as the product.
        opened = _sigmoid(gates[:, : 3 * _UNITS])
        enter, forget = opened[:, :_UNITS], opened[:, _UNITS : 2 * _UNITS]
        cell = forget * cell + enter * np.tanh(gates[:, 3 * _UNITS :])
        return opened[:, 2 * _UNITS :] * np.tanh(cell), cell


@cache
def voice_network() -> VoiceNetwork:
    """The network, loaded once in a process."""
    with np.load(Path(__file__).with_name("silero.npz"), allow_pickle=False) as weights:
        return VoiceNetwork(dict(weights))


def _of_all_steps(weight: Tensor, bias: Tensor, steps: int, stride: int) -> tuple[Tensor, Tensor]:
    """A convolution [out, in, 3 taps] of so few steps as one matrix [steps x in, steps out x out]
    and its bias: there is nothing to lay out then."""
    made = (steps - 1) // stride + 1
    dense = np.zeros((steps, weight.shape[1], made, weight.shape[0]), np.float32)
    for step in range(made):
        for tap in range(3):
            if 0 <= (at := step * stride + tap - 1) < steps:
                dense[at, :, step] = weight[:, :, tap].T
    return dense.reshape(steps * weight.shape[1], -1), np.tile(bias, made)


def _sigmoid(values: Tensor) -> Tensor:
    return np.asarray(1 / (1 + np.exp(-values)))
