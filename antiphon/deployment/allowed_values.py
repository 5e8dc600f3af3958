"""Adds the allowed values to an error message of msgspec, which only contains the invalid one."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

_INVALID = re.compile(r"Invalid (?:enum )?value \S")
# A step into an object's field or into any element of an array or a mapping.
_STEP = re.compile(r"(?P<name>[^.\[\]]+)|\[[^\]]*\]")


def with_allowed_values(text: str, kind: Any, path: str) -> str:
    """Return the error message with the values that `kind` allows at `path`.

    `path` is the path in the error message of msgspec, without the leading `$`, such as
    `messages[0].role`. A message about anything other than an invalid choice is returned as is.
    """
    if not _INVALID.match(text):
        return text
    allowed = sorted({str(each) for each in _values(kind, path)})
    return f"{text}; use one of: {', '.join(allowed)}" if allowed else text


def _values(kind: Any, path: str) -> Iterator[object]:
    """Yield the literals, members of enumerations, and tags that are allowed at a path."""
    reached: list[object] = [*_alternatives(_described(kind))]
    for step in _STEP.finditer(path):
        reached = [each for one in reached for each in _within(one, step["name"])]
    for each in reached:
        if isinstance(each, inspect.LiteralType):
            yield from each.values
        elif isinstance(each, inspect.EnumType):
            yield from (member.value for member in each.cls)
        elif isinstance(each, _Tag):
            yield each.value


class _Tag(msgspec.Struct, frozen=True):
    """The only value of the field that distinguishes a struct from the others of a union."""

    value: object


def _within(kind: object, name: str | None) -> Iterator[object]:
    """Yield what a field, or without a name an element, of this type can be."""
    if name is None:
        if isinstance(kind, inspect.CollectionType):
            yield from _alternatives(kind.item_type)
        elif isinstance(kind, inspect.DictType):
            yield from _alternatives(kind.value_type)
    elif isinstance(kind, inspect.StructType):
        if name == kind.tag_field:
            yield _Tag(kind.tag)
        for field in kind.fields:
            if field.encode_name == name:
                yield from _alternatives(field.type)


def _alternatives(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Yield the types that a union allows, or the type itself."""
    while isinstance(kind, inspect.Metadata):
        kind = kind.type
    if isinstance(kind, inspect.UnionType):
        for each in kind.types:
            yield from _alternatives(each)
    else:
        yield kind


@functools.lru_cache(maxsize=32)
def _described(kind: Any) -> inspect.Type:
    return inspect.type_info(kind)
