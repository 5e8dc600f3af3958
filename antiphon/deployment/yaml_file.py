"""A YAML file as something checked, with errors that name the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from antiphon.errors import InvalidArgument

Content = TypeVar("Content")


def read_yaml(path: Path, convert: Callable[[object], Content], *, name: str) -> Content:
    """What `convert` makes of the file. Raises `InvalidArgument`, which begins with `name`."""
    try:
        return convert(msgspec.yaml.decode(path.read_bytes()))
    except OSError as error:
        raise InvalidArgument(f"{name}: {error.strerror}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error.message}", field=error.field) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"{name}: {error}") from error
