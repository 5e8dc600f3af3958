"""Reads YAML files as plain data and reports errors with the name of the file.

PyYAML parses the file, but the document is built here, directly from PyYAML's events. This means
that a file can't use up memory with its aliases and that the caller sees no unexpected exceptions.
It also avoids PyYAML's large graph of nodes, whose garbage collection would pause other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from antiphon.errors import InvalidArgument, told

Content = TypeVar("Content")

MAX_VALUES = 1_000_000
"""The maximum number of values in a document. An alias counts as all of the values that
it repeats.
"""

MAX_DEPTH = 64
MAX_NUMBER_CHARS = 64
"""The maximum number of characters in a number. With longer numbers, Python either takes quadratic
time or fails.
"""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_NUMBERS = (f"{_TAG}int", f"{_TAG}float")
_COLLECTIONS = (None, "!", f"{_TAG}map", f"{_TAG}seq")


def read_yaml(path: Path, convert: Callable[[object], Content], *, name: str) -> Content:
    """Read the file and return the result of `convert`. Raises `InvalidArgument` with a message
    that starts with `name`.
    """
    try:
        return convert(decode_yaml(path.read_bytes()))
    except OSError as error:
        raise InvalidArgument(f"{name}: {error.strerror}") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"{name}: {error.message}", field=error.field) from error
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"{name}: {error}") from error


def decode_yaml(content: bytes) -> object:
    """Return the document in a file. It may consist of None, booleans, numbers, strings, times,
    lists and dictionaries.

    Aliases, merge keys (`<<`) and the types of YAML 1.1 are supported. Raises `InvalidArgument` if
    the content isn't YAML, uses tags for other types, contains a mapping with a duplicate key, or
    has more than `MAX_VALUES` values or more than `MAX_DEPTH` levels.
    """
    try:
        return _Document(content).read()
    except yaml.MarkedYAMLError as error:
        raise InvalidArgument(_described(error)) from error
    except yaml.reader.ReaderError as error:
        raise InvalidArgument(
            f"unacceptable character at position {error.position}: {error.reason}"
        ) from error
    except yaml.YAMLError as error:
        raise InvalidArgument(" ".join(str(error).split())) from error


def _described(error: yaml.MarkedYAMLError) -> str:
    """Return the position and the cause of an error on one line."""
    cause = error.problem or error.context or "isn't valid YAML"
    mark = error.problem_mark or error.context_mark
    return f"line {mark.line + 1}, column {mark.column + 1}: {cause}" if mark else cause


@dataclass(slots=True)
class _Collection:
    """A list or a mapping whose end hasn't been reached. `begins_at` is the number of values before
    it.
    """

    anchor: str | None
    begins_at: int
    items: list[object] | None = None
    members: dict[object, object] = field(default_factory=dict)
    merged: dict[object, object] | None = None
    key: object = None
    has_key: bool = False

    @property
    def value(self) -> object:
        """Return the complete value. A mapping's own members come before those of the mappings that
        it merges.
        """
        if self.items is not None:
            return self.items
        return self.members if self.merged is None else {**self.merged, **self.members}


@dataclass(frozen=True, slots=True)
class _MergeKey:
    """The key `<<`."""


class _Document:
    """A document that is built from the parser's events."""

    def __init__(self, content: bytes) -> None:
        self._loader = _LOADER(content)
        self._open: list[_Collection] = []
        self._anchors: dict[str, tuple[object, int]] = {}
        self._values = 0
        self._line = 0
        self._root: object = None

    def read(self) -> object:
        """Return the document, or None if the file is empty. If the file isn't valid, raises
        `InvalidArgument` or `YAMLError`.
        """
        documents = 0
        try:
            while self._loader.check_event():
                event = self._loader.get_event()
                self._line = event.start_mark.line + 1
                documents += isinstance(event, yaml.DocumentStartEvent)
                if documents > 1:
                    raise self._fault("must contain a single document")
                self._take(event)
        finally:
            self._loader.dispose()
        return self._root

    def _take(self, event: yaml.Event) -> None:
        match event:
            case yaml.ScalarEvent():
                self._count(1)
                self._add(self._scalar(event), event.anchor, 1)
            case yaml.AliasEvent():
                if event.anchor not in self._anchors:
                    raise self._fault(f"the alias {told(event.anchor)} refers to no earlier value")
                value, size = self._anchors[event.anchor]
                self._count(size)
                self._add(value, None, size)
            case yaml.CollectionStartEvent():
                self._begin(event)
            case yaml.CollectionEndEvent():
                ended = self._open.pop()
                self._add(ended.value, ended.anchor, self._values - ended.begins_at)

    def _begin(self, event: yaml.CollectionStartEvent) -> None:
        if event.tag not in _COLLECTIONS:
            raise self._fault(f"the tag {told(event.tag)} is not supported")
        if len(self._open) >= MAX_DEPTH:
            raise self._fault(f"must not be nested more than {MAX_DEPTH} levels deep")
        begun = _Collection(event.anchor, self._values)
        if isinstance(event, yaml.SequenceStartEvent):
            begun.items = []
        self._count(1)
        self._open.append(begun)

    def _add(self, value: object, anchor: str | None, size: int) -> None:
        """Add a complete value to the innermost open list or mapping. If none is open, the value
        becomes the root of the document. `size` is the number of values that it contains.
        """
        if anchor is not None and not isinstance(value, _MergeKey):
            self._anchors[anchor] = value, size
        if not self._open:
            self._root = value
            return
        within = self._open[-1]
        if within.items is not None:
            within.items.append(value)
        elif not within.has_key:
            self._add_key(within, value)
        else:
            within.has_key = False
            if isinstance(within.key, _MergeKey):
                within.merged = self._merged(value)
            else:
                within.members[within.key] = value

    def _add_key(self, within: _Collection, key: object) -> None:
        if isinstance(key, list | dict):
            raise self._fault("a mapping key must be a string or a number")
        twice = within.merged is not None if isinstance(key, _MergeKey) else key in within.members
        if twice:
            shown = "<<" if isinstance(key, _MergeKey) else told(key)
            raise self._fault(
                f"the key {shown} is repeated in a mapping; remove one of the entries"
            )
        within.key, within.has_key = key, True

    def _merged(self, value: object) -> dict[object, object]:
        """Return the members that `<<` merges. If several mappings have the same key, the first one
        wins.
        """
        several: Iterable[object] = value if isinstance(value, list) else [value]
        merged: dict[object, object] = {}
        for each in several:
            if not isinstance(each, dict):
                raise self._fault("<< must be a mapping or a list of mappings")
            merged = {**each, **merged}
        return merged

    def _scalar(self, event: yaml.ScalarEvent) -> object:
        tag = event.tag
        if tag in (None, "!"):
            tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag == f"{_TAG}str":
            return event.value
        if tag == f"{_TAG}merge" and self._awaits_key():
            return _MergeKey()
        if tag in _NUMBERS and len(event.value) > MAX_NUMBER_CHARS:
            raise self._fault(
                f"a number has more than {MAX_NUMBER_CHARS} characters; put quotes around strings"
            )
        try:
            # PyYAML keeps everything that it constructs until the document is complete.
            return self._loader.construct_document(yaml.ScalarNode(tag, event.value))
        except yaml.MarkedYAMLError as error:
            raise self._fault(f"{told(event.value)}: {error.problem}") from error
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            # The constructors of Python's types raise these errors, which PyYAML does not catch.
            kind = tag.removeprefix(_TAG)
            raise self._fault(f"{told(event.value)} is not a valid {kind}: {error}") from error

    def _awaits_key(self) -> bool:
        return bool(self._open) and self._open[-1].items is None and not self._open[-1].has_key

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MAX_VALUES:
            raise self._fault(
                f"must not contain more than {MAX_VALUES} values, including repeated ones"
            )

    def _fault(self, why: str) -> InvalidArgument:
        return InvalidArgument(f"line {self._line}: {why}")
