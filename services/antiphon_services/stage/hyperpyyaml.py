"""Reads HyperPyYAML files as data.

HyperPyYAML's own loader imports modules and calls functions named in the file. This module doesn't
construct anything. Instead, a tagged mapping becomes a dictionary that contains the name under the
key `!new`, `!name` or `!apply`, which callers can compare with the expected name.

The tags `!new:`, `!name:` and `!apply:` are supported for mappings, sequences and empty values.
`!ref <key>` is supported if the key is a plain value at the top level, and so are products of
references and numbers.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import yaml

from antiphon.pipelines.files import reading, require_file

ARGUMENTS = "!arguments"
"""The key that contains the values of a tagged sequence."""

MAX_BYTES = 1 << 20

_REFERENCE = re.compile(r"<(\w+)>")
_Plain = str | int | float | bool | None


class _Reference(str):
    """The text after `!ref`."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader, extended to represent HyperPyYAML's tags as data."""


def _tagged(kind: str) -> Any:
    def construct(loader: _Loader, name: str, node: yaml.Node) -> dict[str, Any]:
        match node:
            case yaml.MappingNode():
                made = loader.construct_mapping(node, deep=True)
                return {kind: name, **{str(key): each for key, each in made.items()}}
            case yaml.SequenceNode():
                return {kind: name, ARGUMENTS: loader.construct_sequence(node, deep=True)}
        return {kind: name}

    return construct


for _kind in ("!new", "!name", "!apply"):
    _Loader.add_multi_constructor(f"{_kind}:", _tagged(_kind))
_Loader.add_constructor(
    "!ref",
    lambda loader, node: _Reference(loader.construct_scalar(node)),  # type: ignore[arg-type]
)


def read_hyperpyyaml(path: Path) -> dict[str, Any]:
    """Return the file's top-level mapping, with references resolved.

    A reference to an object, such as another module, is left as the text after `!ref`. Raises
    `FailedPrecondition` if the file is missing, is too large or contains unsupported constructs.
    """
    require_file(path)
    with reading(path):
        if path.stat().st_size > MAX_BYTES:
            raise ValueError(f"it has more than {MAX_BYTES} bytes")
        content = yaml.load(path.read_bytes(), _Loader)
        if not isinstance(content, dict):
            raise TypeError(f"it contains a {type(content).__name__} instead of a mapping")
        resolved: dict[str, Any] = _resolve(content, content)
        return resolved


def _resolve(value: Any, top: dict[str, Any]) -> Any:
    match value:
        case _Reference():
            return _product(value, top)
        case dict():
            return {name: _resolve(each, top) for name, each in value.items()}
        case list():
            return [_resolve(each, top) for each in value]
    return value


def _product(text: _Reference, top: dict[str, Any]) -> _Plain:
    """Resolve `<a>`, `<a> * <b>` or `<a> * 2`."""
    factors = [each.strip() for each in text.split("*")]
    values: list[_Plain] = []
    for factor in factors:
        named = _REFERENCE.fullmatch(factor)
        value = top.get(named[1], factor) if named else float(factor)
        if isinstance(value, dict | list | _Reference):
            return str(text)
        values.append(value)
    if len(values) == 1:
        return values[0]
    numbers = [each for each in values if isinstance(each, int | float)]
    if len(numbers) < len(values):
        raise ValueError(f"!ref {text}: is not a product of numbers")
    return math.prod(numbers)
