"""Determines how the fields of a request body are treated. The rules are the same for all
endpoints.

- A field is treated as missing if it is `null` or if it has an empty value that the field does not
  accept.
- If OpenAI or vLLM defines a field that is not supported, the request is rejected with a hint,
  unless the value has no effect (`Unsupported`).
- All other fields are ignored and reported in the header `x-antiphon-ignored`, in the log and in a
  metric (`IgnoredFields`). With `gateway.unknown_fields: reject`, the request is rejected instead.

Most bodies only contain fields of their struct. These are simply decoded. All other bodies are
first reduced to these fields, level by level, as JSON text. The values are not decoded in the
process, so numbers and raw values remain exact.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import inspect

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon_gateway.endpoints.http.json_body import decode_body

UnknownFields = Literal["ignore", "reject"]
Body = TypeVar("Body")

Json = bytes | msgspec.Raw
"""A JSON value as text. A `Raw` is a view of the body, so nothing is copied."""

_EMPTY = (b"null", b'""', b"[]", b"{}")
_LONGEST_EMPTY = 32
"""The maximum length of an empty value, including any whitespace around it."""
_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}")
MOST_REPORTED = 32
"""The maximum number of ignored fields that are reported per request."""

_object_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that is known but not supported.

    `no_ops` contains values that are accepted because they have no effect. Null and empty values
    are always accepted. If `any_value` is true, any value is accepted.
    """

    no_ops: tuple[Any, ...] = ()
    remedy: str = "leave it out"
    any_value: bool = False

    def check(self, name: str, value: object) -> None:
        """Raise `NotImplementedYet` with the field if the value would have an effect."""
        if self.any_value or value in (None, "", [], {}, ()):
            return
        if not any(_same(value, each) for each in self.no_ops):
            raise NotImplementedYet(f"{name}: is not supported; {self.remedy}", field=name)


class IgnoredFields(Collection[str]):
    """The unknown fields of one request, as paths without indices."""

    def __init__(self, unknown_fields: UnknownFields) -> None:
        self._reject = unknown_fields == "reject"
        self._names: dict[str, None] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str, field: str) -> None:
        """Record an ignored field. `field` is its path, including indices. Raises `InvalidArgument`
        if the deployment rejects unknown fields.
        """
        if self._reject:
            raise InvalidArgument(f"{field}: Object contains unknown field `{name}`", field=field)
        # The client chooses this name, which ends up in a header and in the log.
        shown = name if _NAME.fullmatch(name) else "(unprintable)"
        if len(self._names) < MOST_REPORTED:
            self._names[shown] = None


def decode_fields(
    decoder: msgspec.json.Decoder[Body],
    body: bytes | str,
    unsupported: Mapping[str, Unsupported],
    ignored: IgnoredFields,
) -> Body:
    """Decode the body according to the rules above. The keys of `unsupported` are field paths
    without indices.

    Raises `InvalidArgument` or `NotImplementedYet` with the field.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        utf8 = body.encode() if isinstance(body, str) else body
        cut = _Cut(unsupported, ignored).value(utf8, decoder.type, "", "")
    return decode_body(decoder, bytes(cut))


def check_unsupported(given: object, unsupported: Mapping[str, Unsupported]) -> None:
    """Raise `NotImplementedYet` if the struct contains a known field that isn't supported."""
    for name, each in unsupported.items():
        if (value := getattr(given, name, None)) is not None:
            each.check(name, value)


class _Cut:
    def __init__(self, unsupported: Mapping[str, Unsupported], ignored: IgnoredFields) -> None:
        self._unsupported = unsupported
        self._ignored = ignored

    def value(self, raw: Json, kind: Any, path: str, field: str) -> Json:
        """Return the JSON value without the fields that aren't used. If there are no such fields,
        the same object is returned.

        `field` contains indices, while `path` doesn't.
        """
        first = bytes(memoryview(raw)[:_LONGEST_EMPTY]).lstrip()[:1]
        structs, items = _shape(kind)
        try:
            if first == b"{" and structs:
                return self._object(raw, structs, path, field)
            if first == b"[" and items:
                return self._list(raw, items[0], path, field)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            # The decoder will report what is wrong with it.
            pass
        return raw

    def _object(
        self, raw: Json, structs: tuple[type[msgspec.Struct], ...], path: str, field: str
    ) -> Json:
        members = _object_decoder.decode(raw)
        struct = _chosen(structs, members)
        if struct is None:
            return raw
        known = _fields(struct)
        kept: list[bytes] = []
        changed = False
        for name, value in members.items():
            where = f"{path}.{name}" if path else name
            at = f"{field}.{name}" if field else name
            if name not in known:
                if name == struct.__struct_config__.tag_field:
                    kept.append(_member(name, value))
                    continue
                changed = True
                self._leave_out(where, at, value)
                continue
            if _is_not_given(value, known[name]):
                changed = True
                continue
            cut = self.value(value, known[name].type, where, at)
            changed = changed or cut is not value
            kept.append(_member(name, cut))
        return b"{" + b",".join(kept) + b"}" if changed else raw

    def _list(self, raw: Json, item: Any, path: str, field: str) -> Json:
        given = _list_decoder.decode(raw)
        cut = [
            self.value(each, item, f"{path}[]", f"{field}[{index}]")
            for index, each in enumerate(given)
        ]
        if all(one is other for one, other in zip(given, cut, strict=True)):
            return raw
        return b"[" + b",".join(cut) + b"]"

    def _leave_out(self, where: str, at: str, raw: Json) -> None:
        """Handle a field that doesn't exist in the struct."""
        if where in self._unsupported:
            self._unsupported[where].check(where, _plain(raw))
        elif not _is_empty(raw):
            self._ignored.add(where, at)


def or_unset(value: int | None) -> int | None:
    """Return None for -1, which vLLM's clients send for a value that is not set."""
    return None if value == -1 else value


def or_all(top_k: int | None) -> int | None:
    """Return 0 for -1, the value with which vLLM's clients select all IDs."""
    return 0 if top_k == -1 else top_k


def _plain(raw: Json) -> object:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        # This isn't equal to any of the values that have no effect.
        return raw


def _same(value: object, other: object) -> bool:
    """Return whether two values are equal. In contrast to Python, true isn't equal to 1."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _member(name: str, value: Json) -> bytes:
    return b"".join((msgspec.json.encode(name), b":", value))


def _is_empty(raw: Json) -> bool:
    view = memoryview(raw)
    return len(view) <= _LONGEST_EMPTY and bytes(view).strip() in _EMPTY


def _is_not_given(raw: Json, field: msgspec.structs.FieldInfo) -> bool:
    """Return whether a value is treated as missing. This is the case if it is null or if it is
    empty and belongs to an optional field that doesn't accept empty values.
    """
    if field.required or not _is_empty(raw):
        return False
    try:
        msgspec.json.decode(raw, type=field.type)
    except msgspec.MsgspecError:
        return True
    return False


@lru_cache(maxsize=256)
def _fields(struct: type[msgspec.Struct]) -> Mapping[str, msgspec.structs.FieldInfo]:
    return {each.encode_name: each for each in msgspec.structs.fields(struct)}


@lru_cache(maxsize=1024)
def _shape(kind: Any) -> tuple[tuple[type[msgspec.Struct], ...], tuple[Any, ...]]:
    """Return the structs that this type allows for an object and the types of elements that it
    allows for a list.
    """
    described = inspect.type_info(kind)
    while isinstance(described, inspect.Metadata):
        described = described.type
    members = described.types if isinstance(described, inspect.UnionType) else (described,)
    structs = tuple(each.cls for each in members if isinstance(each, inspect.StructType))
    return structs, _item_types(kind)


def _item_types(kind: Any) -> tuple[Any, ...]:
    """Return the element types of the first list or tuple in an annotation."""
    origin, arguments = getattr(kind, "__origin__", None), getattr(kind, "__args__", ())
    if origin in (list, tuple):
        return arguments[:1]
    found = (_item_types(each) for each in arguments)
    return next((each for each in found if each), ())


def _chosen(
    structs: tuple[type[msgspec.Struct], ...], members: Mapping[str, msgspec.Raw]
) -> type[msgspec.Struct] | None:
    """Return the struct for an object. If there are several, the object's tag determines which one
    is used.
    """
    if len(structs) == 1:
        return structs[0]
    for struct in structs:
        config = struct.__struct_config__
        tag = members.get(config.tag_field or "")
        if tag is not None and bytes(tag).strip() == msgspec.json.encode(config.tag):
            return struct
    return None
