"""Single-line representations of values. Long content is abbreviated."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from antiphon.errors import shortened, told

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST_CHARS = 200
MOST_ITEMS = 4


def brief(value: DataclassInstance) -> str:
    """Return a short `repr` for a dataclass that may contain several megabytes."""
    shown = (f"{each.name}={_short(getattr(value, each.name))}" for each in fields(value))
    return f"{type(value).__name__}({', '.join(shown)})"


def _short(value: object) -> str:
    match value:
        case bytes():
            return f"<{len(value)} bytes>" if len(value) > MOST_ITEMS else repr(value)
        case str():
            return told(value, MOST_CHARS)
        case tuple() | list():
            shown = [_short(each) for each in value[:MOST_ITEMS]]
            if more := len(value) - len(shown):
                shown.append(f"<{more} more>")
            inside = ", ".join(shown)
            return f"[{inside}]" if isinstance(value, list) else f"({inside})"
        case _:
            return shortened(repr(value), MOST_CHARS)
