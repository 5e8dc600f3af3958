"""silero's network in numpy. It computes the probability that a frame of 32 ms contains speech.
This module performs no I/O.

The network consists of a spectrum, four convolutions and an LSTM cell. Its results differ from
onnxruntime's results by at most 3e-6. onnxruntime itself isn't used, because it would add 68 MB to
the image. Apart from the LSTM cell, all layers process each frame separately, so several frames
from many conversations are processed at once. This is done with products of two matrices, because
numpy computes products with more dimensions one matrix at a time. Processing 32 frames together
takes a fifth of the time that it takes to process them one at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np

from antiphon.values.chunk import Tensor

RATE_HZ = 16_000
FRAME_SAMPLES = 512
FRAME_S = FRAME_SAMPLES / RATE_HZ
CONTEXT_SAMPLES = 64
"""The number of samples from the previous frame that are processed together with each frame."""
SEEN_SAMPLES = CONTEXT_SAMPLES + FRAME_SAMPLES

_HOP, _WINDOW, _BINS = 128, 256, 129
_STEPS = 4
_WHOLE = _STEPS - 1
_MIRRORED = _HOP * (_STEPS - 1) + _WINDOW - SEEN_SAMPLES
_STRIDES = (1, 2, 2, 1)
_UNITS = 128
_CELL_ROWS = 48
"""The number of conversations in a product of the LSTM cell. If a product has more than a million
multiplications, numpy's library first rearranges the weights, which takes as long as the product of
a few rows.
"""


def no_memory() -> Tensor:
    """Return the initial state of the network."""
    return np.zeros(2 * _UNITS, np.float32)


class VoiceNetwork:
    """The network, with its weights by name."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        # The rows of silero's first layer are a Fourier transform multiplied by a window, as can be
        # seen from the row for frequency 0. Here, the transform divides by the length of the
        # window.
        self._window = weights["stft"][0, 0] * np.float32(_WINDOW)
        layers = [(weights[f"encoder.{i}.weight"], weights[f"encoder.{i}.bias"]) for i in range(4)]
        # Three taps for all channels, for windows that are arranged in this order.
        first, self._first_bias = layers[0]
        self._first = np.ascontiguousarray(first.transpose(2, 1, 0).reshape(-1, len(first)))
        self._layers, steps = [], _STEPS
        for (weight, bias), stride in zip(layers[1:], _STRIDES[1:], strict=True):
            self._layers.append(_ShortConvolution(weight, bias, steps, stride))
            steps = (steps - 1) // stride + 1
        # The gates that use a sigmoid come first (input, forget and output). The new values follow.
        order = np.concatenate([np.r_[: 2 * _UNITS, 3 * _UNITS : 4 * _UNITS], np.r_[256:384]])
        # sigmoid(x) equals (tanh(x / 2) + 1) / 2, so a single pass of the same function is enough
        # for all four.
        scale = np.repeat(np.array([0.5, 1], np.float32), [3 * _UNITS, _UNITS])
        self._input = _by_gate(weights["lstm.input"][order].T * scale)
        self._hidden = _by_gate(weights["lstm.hidden"][order].T * scale)
        bias = (weights["lstm.input_bias"] + weights["lstm.hidden_bias"])[order] * scale
        self._bias = _by_gate(bias[np.newaxis])
        self._output = weights["output"][0, :, 0]
        self._output_bias = weights["output_bias"]
        self._rooms = _Rooms()

    def hear(
        self, sounds: Sequence[Tensor], memories: Sequence[Tensor]
    ) -> tuple[list[list[float]], list[Tensor]]:
        """Return the probability of each frame for several conversations and the states to pass
        along with their next frames.

        `sounds` contains the next frames of each conversation [frames, SEEN_SAMPLES]. Conversations
        can have different numbers of frames, but each needs at least one.
        """
        counts = [len(each) for each in sounds]
        # Put conversations with more frames first, so that each step of the cell processes a prefix
        # of them.
        order = sorted(range(len(counts)), key=counts.__getitem__, reverse=True)
        going = [sum(count > step for count in counts) for step in range(max(counts))]
        ends = list(accumulate(counts))
        owners = [each for number in going for each in order[:number]]
        rows = [
            ends[each] - counts[each] + step
            for step, number in enumerate(going)
            for each in order[:number]
        ]
        room = self._rooms.of(len(rows))
        seen = room.seen[:, : len(rows)]
        np.matmul(self._encoded(sounds, room, len(rows))[rows], self._input, out=seen)
        seen += self._bias
        memory = np.array([memories[each] for each in order])
        heard = self._remembered(seen, memory, going)
        spoken: list[list[float]] = [[] for _ in sounds]
        outputs = _sigmoid(np.maximum(heard, 0, out=heard) @ self._output + self._output_bias)
        for owner, probability in zip(owners, outputs.tolist(), strict=True):
            spoken[owner].append(probability)
        after = dict(zip(order, memory, strict=True))
        return spoken, [after[each] for each in range(len(counts))]

    def _encoded(self, sounds: Sequence[Tensor], room: _Room, frames: int) -> Tensor:
        """Return the encoded frames of all sounds [frames, units]."""
        sound, windows, padded = room.sound[:frames], room.windows[:frames], room.padded[:frames]
        np.concatenate(sounds, out=sound)
        np.multiply(room.inside[:frames], self._window, out=windows[:, :_WHOLE])
        last, there = windows[:, _WHOLE], _WINDOW - _MIRRORED
        np.multiply(sound[:, _HOP * _WHOLE :], self._window[:there], out=last[:, :there])
        mirrored = sound[:, -2 : -2 - _MIRRORED : -1]
        np.multiply(mirrored, self._window[there:], out=last[:, there:])
        spectrum: Tensor = room.spectrum[:frames]
        # With a float32 factor, numpy computes the transform in float32. Without one, it uses
        # float64.
        np.fft.rfft(windows, norm="forward", out=spectrum)
        np.abs(spectrum, out=padded[:, 1:-1])
        taps = room.taps[:frames]
        np.copyto(taps, room.overlapping[:frames])
        values = room.values[: frames * _STEPS]
        np.matmul(taps.reshape(-1, 3 * _BINS), self._first, out=values)
        values += self._first_bias
        values = np.maximum(values, 0, out=values).reshape(frames, -1)
        for layer in self._layers:
            values = layer.of(values)
        return np.asarray(values)

    def _remembered(self, seen: Tensor, memory: Tensor, going: Sequence[int]) -> Tensor:
        """Run the steps of the cell. Step i processes the first `going[i]` conversations.
        Afterwards, `memory` contains their new states.
        """
        hidden, cell = memory[:, :_UNITS], memory[:, _UNITS:]
        heard = np.empty((seen.shape[1], _UNITS), np.float32)
        every = np.empty((4, len(memory), _UNITS), np.float32)
        start = 0
        for number in going:
            step = slice(start, start + number)
            start += number
            gates = every[:, :number]
            for first in range(0, number, _CELL_ROWS):
                some = slice(first, min(first + _CELL_ROWS, number))
                np.matmul(hidden[some], self._hidden, out=gates[:, some])
            gates += seen[:, step]
            np.tanh(gates, out=gates)
            opened = gates[:3]
            opened += 1
            opened *= 0.5
            kept, entered = cell[:number], gates[3]
            kept *= gates[1]
            entered *= gates[0]
            kept += entered
            np.multiply(gates[2], np.tanh(kept), out=heard[step])
            hidden[:number] = heard[step]
        return heard


class _Room:
    """Reusable buffers for large arrays with a certain number of frames.

    malloc would return this memory to the system every time, and the resulting page faults would
    take as long as the transform.
    """

    def __init__(self, frames: int) -> None:
        self.frames = frames
        self.sound = np.empty((frames, SEEN_SAMPLES), np.float32)
        # All windows except the last one, which is mirrored at the end of the frame.
        strides = (self.sound.strides[0], _HOP * self.sound.itemsize, self.sound.itemsize)
        shape = (frames, _WHOLE, _WINDOW)
        self.inside = np.ndarray(shape, np.float32, self.sound, strides=strides)
        self.windows = np.empty((frames, _STEPS, _WINDOW), np.float32)
        self.spectrum = np.empty((frames, _STEPS, _BINS), np.complex64)
        # There is a step of zeros at both ends.
        self.padded = np.zeros((frames, _STEPS + 2, _BINS), np.float32)
        shape = (frames, _STEPS, 3 * _BINS)
        self.overlapping = np.ndarray(shape, np.float32, self.padded, strides=self.padded.strides)
        self.taps = np.empty(shape, np.float32)
        self.values = np.empty((frames * _STEPS, _UNITS), np.float32)
        self.seen = np.empty((4, frames, _UNITS), np.float32)


class _Rooms(threading.local):
    """The buffers that belong to each thread."""

    def __init__(self) -> None:
        self._room = _Room(1)

    def of(self, frames: int) -> _Room:
        """Return buffers that are large enough for this many frames."""
        if self._room.frames < frames:
            self._room = _Room(frames)
        return self._room


class _ShortConvolution:
    """A convolution [out, in, 3 taps] with so few steps that there can be a separate matrix for
    each output step. This way, nothing has to be rearranged, and nothing is multiplied by zero.
    """

    def __init__(self, weight: Tensor, bias: Tensor, steps: int, stride: int) -> None:
        self._parts: list[tuple[slice, Tensor]] = []
        channels = weight.shape[1]
        for first in range(-1, steps - 1, stride):
            taps = range(max(0, -first), min(3, steps - first))
            seen = slice((first + taps.start) * channels, (first + taps.stop) * channels)
            part = weight[:, :, taps.start : taps.stop].transpose(2, 1, 0)
            self._parts.append((seen, np.ascontiguousarray(part.reshape(-1, len(weight)))))
        self._bias = np.tile(bias, len(self._parts))

    def of(self, values: Tensor) -> Tensor:
        """Map [frames, steps x in] to [frames, output steps x out]."""
        made = np.empty((len(values), len(self._bias)), np.float32)
        for number, (seen, weight) in enumerate(self._parts):
            out = weight.shape[1]
            np.matmul(values[:, seen], weight, out=made[:, number * out : (number + 1) * out])
        made += self._bias
        return np.asarray(np.maximum(made, 0, out=made))


@cache
def voice_network() -> VoiceNetwork:
    """Return the network, which is loaded only once per process."""
    with np.load(Path(__file__).with_name("silero.npz"), allow_pickle=False) as weights:
        return VoiceNetwork(dict(weights))


def _by_gate(values: Tensor) -> Tensor:
    """Split [rows, 4 x units] into [4, rows, units].

    Each gate is used separately, and its product is small enough for `_CELL_ROWS`.
    """
    return np.ascontiguousarray(values.reshape(len(values), 4, _UNITS).transpose(1, 0, 2))


def _sigmoid(values: Tensor) -> Tensor:
    return np.asarray(1 / (1 + np.exp(-values)))
