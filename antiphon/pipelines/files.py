"""Reads the small files of a checkpoint. Error messages contain the file's path."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from antiphon.errors import AntiphonError, FailedPrecondition

CONFIG_FILE = "config.json"
REMEDY = "take the file from where the checkpoint came from"
LONGEST_REASON = 300


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises `FailedPrecondition` if the file is missing or invalid.
    """
    require_file(path)
    with reading(path):
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict):
            raise TypeError(f"it holds a {type(content).__name__}, no JSON object")
    return content


def read_config(model_dir: Path) -> dict[str, Any]:
    """Return the checkpoint's `config.json`. Raises `FailedPrecondition` if it cannot be read."""
    return read_json(model_dir / CONFIG_FILE)


def require_file(path: Path) -> None:
    """Raise `FailedPrecondition` if the file does not exist."""
    if not path.is_file():
        raise FailedPrecondition(f"{path.parent}: {path.name} is missing; {REMEDY}")


@contextlib.contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert every error that a library raises because of the file's content.

    The resulting error is a `FailedPrecondition`.
    """
    try:
        yield
    except AntiphonError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:LONGEST_REASON]
        raise FailedPrecondition(f"{path}: cannot be used: {reason}; {REMEDY}") from error
