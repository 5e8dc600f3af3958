"""ONNX networks in a checkpoint, run by onnxruntime on a CPU.

onnxruntime is an optional dependency, the extra `clips`, for stages with such a network. A session
takes a second to create and its file's size in memory, so it is created for the first clip.
"""

from __future__ import annotations

import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy.typing as npt

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import reading, require_file


class OnnxNetwork:
    """A network in a file. Thread-safe.

    Raises `FailedPrecondition` if the file or onnxruntime is missing.
    """

    def __init__(self, path: Path) -> None:
        require_file(path)
        if find_spec("onnxruntime") is None:
            raise FailedPrecondition(
                f"{path.name} needs onnxruntime, which is not installed; "
                "install antiphon with the extra `clips`"
            )
        self._path = path
        self._making = threading.Lock()
        self._session: Any = None

    def __call__(self, *inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the first output for these inputs, in the network's order.

        Raises `FailedPrecondition` if the file holds no such network.
        """
        session = self._made()
        with reading(self._path):
            names = [each.name for each in session.get_inputs()]
            output: npt.NDArray[Any] = session.run(None, dict(zip(names, inputs, strict=True)))[0]
        return output

    def _made(self) -> Any:
        with self._making:
            if self._session is None:
                self._session = _session(self._path)
            return self._session


def _session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Like the vendor's front end; other clips use the other cores.
    options.intra_op_num_threads = 1
    with reading(path):
        return onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
