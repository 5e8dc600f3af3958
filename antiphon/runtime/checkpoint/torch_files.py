"""Reads what `torch.save` wrote, and nothing that is code.

Such a file is a pickle, and a pickle can call any function. Only tensors and plain values
are taken, and the file's records lie in it uncompressed, so what they take in memory is no
more than the file's size.
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
    """The file's content, tensors on the CPU in their stored dtype.

    Tensors are mapped from the file where its format allows that, which is what torch has
    written since 1.6. Raises `FailedPrecondition` for a file that is missing or broken, or
    that holds more than tensors and plain values: nothing of it is run.
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
    """Raise unless the archive's records are what `torch.save` makes them."""
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if record.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"its record {record.filename} is compressed")
            if record.filename.endswith(_PICKLE) and record.file_size > MAX_PICKLE_BYTES:
                raise ValueError(f"its {_PICKLE} has {record.file_size} bytes")


def _refusal(path: Path, error: UnpicklingError) -> AntiphonError:
    """Torch's own words advise to read the file nevertheless."""
    called = _CALLED.search(str(error))
    what = f"calls {called[1]}" if called else "holds more than tensors and plain values"
    return FailedPrecondition(
        f"{path}: is refused, because reading it may run code: it {what}; {REMEDY}, or have "
        "its tensors as safetensors"
    )
