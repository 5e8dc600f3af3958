"""The two ONNX networks of a tiny CosyVoice3 checkpoint, which have the same inputs as the released
ones.

This module requires the package `onnx`, which is installed with the test dependencies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from antiphon.pipelines.cosyvoice3 import MEL_BINS, SPEAKER_WIDTH

OPSET, IR = 17, 9
HIDDEN = 32
WHISPER_BINS, DIGITS, LEVELS = 128, 8, 3
FRAMES_OF_A_CODE = 4


def write_speaker_network(path: Path, seed: int) -> None:
    """Write a network that converts filter banks (float32 [1, frames, 80]) to a speaker vector [1,
    192].
    """
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(seed)
    first = draw.standard_normal((MEL_BINS, HIDDEN)).astype(np.float32) / 9
    second = draw.standard_normal((HIDDEN, SPEAKER_WIDTH)).astype(np.float32) / 6
    nodes = [
        helper.make_node("MatMul", ["input", "first"], ["inner"]),
        helper.make_node("Relu", ["inner"], ["active"]),
        helper.make_node("ReduceMean", ["active"], ["mean"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["mean", "second"], ["output"]),
    ]
    _save(
        path,
        nodes,
        [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, "T", MEL_BINS])],
        helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, SPEAKER_WIDTH]),
        [numpy_helper.from_array(first, "first"), numpy_helper.from_array(second, "second")],
    )


def write_code_network(path: Path, seed: int) -> None:
    """Write a network that converts Whisper features (float32 [1, 128, frames]) and their number
    (int32 [1]) to codes (int32 [1, frames // 4]). The digits of a code are those of a finite scalar
    quantization.
    """
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(seed)
    kernel = draw.standard_normal((DIGITS, WHISPER_BINS, FRAMES_OF_A_CODE)).astype(np.float32)
    powers = (LEVELS ** np.arange(DIGITS)).astype(np.float32)
    constants = {
        "kernel": kernel / np.float32(4),
        "scale": np.float32(1.4),
        "one": np.float32(1),
        "powers": powers[None, :, None],
    }
    nodes = [
        helper.make_node("Conv", ["feats", "kernel"], ["inner"], strides=[FRAMES_OF_A_CODE]),
        helper.make_node("Tanh", ["inner"], ["bounded"]),
        helper.make_node("Mul", ["bounded", "scale"], ["scaled"]),
        helper.make_node("Round", ["scaled"], ["rounded"]),
        helper.make_node("Add", ["rounded", "one"], ["digits"]),
        helper.make_node("Mul", ["digits", "powers"], ["weighted"]),
        helper.make_node("Cast", ["weighted"], ["whole"], to=TensorProto.INT32),
        helper.make_node("ReduceSum", ["whole", "axis"], ["indices"], keepdims=0),
    ]
    tensors = [numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()]
    tensors.append(numpy_helper.from_array(np.array([1], np.int64), "axis"))
    _save(
        path,
        nodes,
        [
            helper.make_tensor_value_info("feats", TensorProto.FLOAT, [1, WHISPER_BINS, "T"]),
            helper.make_tensor_value_info("feats_length", TensorProto.INT32, [1]),
        ],
        helper.make_tensor_value_info("indices", TensorProto.INT32, [1, "N"]),
        tensors,
    )


def _save(path: Path, nodes: list[Any], inputs: list[Any], output: Any, tensors: list[Any]) -> None:
    import onnx
    from onnx import helper

    graph = helper.make_graph(nodes, path.stem, inputs, [output], tensors)
    opset = helper.make_opsetid("", OPSET)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=IR)
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
