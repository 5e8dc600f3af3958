"""Reads files written by `torch.save` without executing any code in them.

These files are pickles, and unpickling can call arbitrary functions. For this reason, only tensors
and plain values are accepted. Records must be uncompressed, which ensures that they can't take up
more memory than the size of the file.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from antiphon.errors import AntiphonError, FailedPrecondition
from antiphon.pipelines.files import REMEDY, reading, require_file

MAX_PICKLE_BYTES = 100_000_000
_PICKLE = "data.pkl"
_CALLED = re.compile(r"GLOBAL ([\w.]+)")


def read_torch_file(path: Path) -> Any:
    """Return the content of the file. Tensors are on the CPU, in the dtype in which they are
    stored.

    If the format permits it, tensors are memory-mapped. This is the case for files written by torch
    1.6 or later. Raises `FailedPrecondition` if the file is missing or corrupt, or contains
    anything other than tensors and plain values. Nothing in the file is executed.
    """
    import torch

    require_file(path)
    with reading(path):
        mapped = zipfile.is_zipfile(path)
        if mapped:
            _check_records(path)
        try:
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
        except UnpicklingError as error:
            raise _refusal(path, error) from error


def _check_records(path: Path) -> None:
    """Raise an error unless the archive's records are stored the way `torch.save` stores them."""
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its record {record.filename} is compressed")
            if record.filename.endswith(_PICKLE) and record.file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"its {_PICKLE} has {record.file_size} bytes")


def _refusal(path: Path, error: UnpicklingError) -> AntiphonError:
    """Return the error for an unsafe file. It replaces torch's message, which suggests that you
    load the file anyway.
    """
    called = _CALLED.search(str(error))
    what = f"calls {called[1]}" if called else "contains more than tensors and plain values"
    return FailedPrecondition(
        f"{path}: was rejected, because loading it might execute code: it {what}; {REMEDY}, or "
        "get its tensors as safetensors"
    )
