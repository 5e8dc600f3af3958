"""Reads the small files in a checkpoint. Error messages contain the path of the file."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError, FailedPrecondition

CONFIG_FILE = "config.json"
INDEX_SUFFIX = ".index.json"
"""The ending of the name of a weight index."""
REMEDY = "get the file from the source of the checkpoint"
LONGEST_REASON = 300
_LFS_POINTER = b"version https://git-lfs"


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises `FailedPrecondition` if the file is missing or invalid.
    """
    require_file(path)
    with reading(path):
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise TypeError(f"it contains a {type(content).__name__} instead of a JSON object")
    return content


def read_config(model_dir: Path) -> dict[str, Any]:
    """Return the checkpoint's `config.json`. Raises `FailedPrecondition` if it can't be read."""
    return read_json(model_dir / CONFIG_FILE)


def require_file(path: Path) -> None:
    """Raise `FailedPrecondition` if the file doesn't exist."""
    if not path.is_file():
        raise FailedPrecondition(f"{path.parent}: {path.name} is missing; {REMEDY}")


def is_lfs_pointer(path: Path) -> bool:
    """Return whether the file only contains a reference to the actual file in Git LFS."""
    with path.open("rb") as file:
        return file.read(len(_LFS_POINTER)) == _LFS_POINTER


def has_weights(path: Path) -> bool:
    """Return whether a weight file, or the first file that an index lists, has been downloaded.

    An index that can't be read counts as downloaded, because loading reports its error.
    """
    if not path.is_file() or is_lfs_pointer(path):
        return False
    if not path.name.endswith(INDEX_SUFFIX):
        return True
    try:
        names: dict[str, str] = json.loads(path.read_bytes())["weight_map"]
        first = path.parent / min(names.values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return True
    return first.is_file() and not is_lfs_pointer(first)


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors that a library raises because of the file's content.

    They are converted to `FailedPrecondition`.
    """
    try:
        yield
    except AntiphonError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
        raise FailedPrecondition(f"{path}: can't be used: {reason}; {REMEDY}") from error
