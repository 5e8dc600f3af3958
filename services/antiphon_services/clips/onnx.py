"""ONNX networks in a checkpoint, which onnxruntime runs on a CPU.

onnxruntime is an optional dependency (the `clips` extra) for stages that use such a network.
Creating a session takes a second and as much memory as the file, so a session is only created when
the first clip arrives.
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
    """A network in a file. This class is thread-safe.

    Raises `FailedPrecondition` if the file does not exist or onnxruntime is not installed.
    """

    def __init__(self, path: Path) -> None:
        require_file(path)
        if find_spec("onnxruntime") is None:
            raise FailedPrecondition(
                f"{path.name} requires onnxruntime, which is not installed; install antiphon "
                "with the extra `clips`"
            )
        self._path = path
        self._making = threading.Lock()
        self._session: Any = None

    def __call__(self, *inputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the network's first output. The inputs must be in the order that the network
        defines.

        Raises `FailedPrecondition` if the file doesn't contain a suitable network.
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
    # The vendor's front end uses the same setting. Other clips can use the other cores.
    options.intra_op_num_threads = 1
    with reading(path):
        return onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
