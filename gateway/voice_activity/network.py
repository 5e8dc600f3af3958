"""silero's network in numpy: how probably a frame of 32 ms holds speech. Pure.

Spectrum, four convolutions, one LSTM cell. It equals onnxruntime's answers to 3e-6, which would
be 68 MB more in the image, and it takes frames of many conversations at once: 16 of them cost
less than three alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from antiphon.chunk import Tensor

RATE_HZ = 16_000
FRAME_SAMPLES = 512
FRAME_S = FRAME_SAMPLES / RATE_HZ
CONTEXT_SAMPLES = 64
"""Of the frame before, which each frame is seen with."""

_HOP, _WINDOW, _PADDING = 128, 256, 64
_STRIDES = (1, 2, 2, 1)
_STATE = 128


@dataclass(frozen=True, slots=True)
class FrameMemory:
    """What the network knows of the frames before: [samples] and two vectors [units]."""

    context: Tensor
    hidden: Tensor
    cell: Tensor


def no_memory() -> FrameMemory:
    """Before the first frame."""
    context, state = np.zeros(CONTEXT_SAMPLES, np.float32), np.zeros(_STATE, np.float32)
    return FrameMemory(context, state, state)


class VoiceNetwork:
    """The network with its weights, by name."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._basis = np.ascontiguousarray(weights["stft"][:, 0].T)
        # [3 taps x channels in, channels out], for windows that are laid out in this order.
        self._layers = [
            (
                np.ascontiguousarray(
                    weights[f"encoder.{i}.weight"]
                    .transpose(2, 1, 0)
                    .reshape(-1, len(weights[f"encoder.{i}.bias"]))
                ),
                weights[f"encoder.{i}.bias"],
                stride,
            )
            for i, stride in enumerate(_STRIDES)
        ]
        self._input = np.ascontiguousarray(weights["lstm.input"].T)
        self._hidden = np.ascontiguousarray(weights["lstm.hidden"].T)
        self._bias = weights["lstm.input_bias"] + weights["lstm.hidden_bias"]
        self._output = weights["output"][0, :, 0]
        self._output_bias = weights["output_bias"]

    def hear(
        self, frames: Tensor, before: list[FrameMemory]
    ) -> tuple[list[float], list[FrameMemory]]:
        """The probability of each frame [frames, samples], of as many conversations, and what to
        give with the next frame of each."""
        context = np.stack([each.context for each in before])
        sound = np.concatenate([context, frames], axis=1)
        hidden, cell = self._cell(
            self._encoded(sound),
            np.stack([each.hidden for each in before]),
            np.stack([each.cell for each in before]),
        )
        spoken = _sigmoid(np.maximum(hidden, 0) @ self._output + self._output_bias)
        tails = frames[:, -CONTEXT_SAMPLES:]
        memories = [FrameMemory(*each) for each in zip(tails, hidden, cell, strict=True)]
        return spoken.tolist(), memories

    def _encoded(self, sound: Tensor) -> Tensor:
        """[frames, samples] to [frames, units]."""
        mirrored = sound[:, -2 : -2 - _PADDING : -1]
        padded = np.concatenate([sound, mirrored], axis=1)
        starts = range(0, padded.shape[1] - _WINDOW + 1, _HOP)
        windows = np.stack([padded[:, at : at + _WINDOW] for at in starts], axis=1)
        spectrum = windows @ self._basis
        real, imaginary = np.split(spectrum, 2, axis=2)
        values = np.sqrt(real * real + imaginary * imaginary)
        for weight, bias, stride in self._layers:
            values = _convolved(values, weight, bias, stride)
        return np.asarray(values[:, 0])

    def _cell(self, seen: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        gates = seen @ self._input + hidden @ self._hidden + self._bias
        enter, forget, new, leave = np.split(gates, 4, axis=1)
        cell = _sigmoid(forget) * cell + _sigmoid(enter) * np.tanh(new)
        return _sigmoid(leave) * np.tanh(cell), cell


@cache
def voice_network() -> VoiceNetwork:
    """The network, loaded once in a process."""
    with np.load(Path(__file__).with_name("silero.npz"), allow_pickle=False) as weights:
        return VoiceNetwork(dict(weights))


def _convolved(values: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """[frames, steps, channels] with three taps, padded by a step at both ends; no negatives."""
    # np.pad takes longer than the product.
    padded = np.zeros((values.shape[0], values.shape[1] + 2, values.shape[2]), np.float32)
    padded[:, 1:-1] = values
    steps = (values.shape[1] - 1) // stride + 1
    last = (steps - 1) * stride + 1
    taps = [padded[:, tap : tap + last : stride] for tap in range(3)]
    return np.asarray(np.maximum(np.concatenate(taps, axis=2) @ weight + bias, 0))


def _sigmoid(values: Tensor) -> Tensor:
    return 1 / (1 + np.exp(-values))
