"""Renders protobuf descriptors and their comments as an HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    ServiceDescriptorProto,
)

# Field numbers of descriptor.proto, which are part of the path of a comment.
_MESSAGES, _ENUMS, _SERVICES = 4, 5, 6
_FIELDS, _NESTED, _NESTED_ENUMS, _MEMBERS = 2, 3, 4, 2

_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>antiphon.v1</title><style>
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td { border-top: 1px solid #ccc; padding: 0.3rem 0.6rem 0.3rem 0; vertical-align: top }
code { white-space: nowrap }
</style></head><body>
"""

Path = tuple[int, ...]


def proto_page(files: Iterable[FileDescriptorProto]) -> str:
    """Return a page with the services, messages and enums of all files, including their
    comments.
    """
    parts = [part for file in files for part in ProtoFile(file).parts()]
    return "\n".join([_HEAD, *parts, "</body></html>", ""])


class ProtoFile:
    """A file and its comments, by their path."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments: dict[Path, str] = {
            tuple(each.path): (each.leading_comments or each.trailing_comments).strip()
            for each in file.source_code_info.location
        }

    def parts(self) -> Iterator[str]:
        """Yield the parts of the page in file order."""
        yield f"<h1>{escape(self._file.name)}</h1>"
        for index, service in enumerate(self._file.service):
            yield from self._service(service, (_SERVICES, index))
        for index, message in enumerate(self._file.message_type):
            yield from self._message(message, message.name, (_MESSAGES, index))
        for index, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, enum.name, (_ENUMS, index))

    def _service(self, service: ServiceDescriptorProto, path: Path) -> Iterator[str]:
        yield self._heading(service.name, "service", path)
        yield from _table(
            (
                each.name,
                f"{_streamed(each.client_streaming)}{_link(each.input_type)} → "
                f"{_streamed(each.server_streaming)}{_link(each.output_type)}",
                self._comment((*path, _MEMBERS, index)),
            )
            for index, each in enumerate(service.method)
        )

    def _message(self, message: DescriptorProto, name: str, path: Path) -> Iterator[str]:
        maps = {
            f".{self._file.package}.{name}.{each.name}": each
            for each in message.nested_type
            if each.options.map_entry
        }
        yield self._heading(name, "message", path)
        yield from _table(
            (
                f"{field.name} = {field.number}",
                _type(field, maps.get(field.type_name)) + _in_oneof(field, message),
                self._comment((*path, _FIELDS, index)),
            )
            for index, field in enumerate(message.field)
        )
        for index, each in enumerate(message.nested_type):
            if not each.options.map_entry:
                yield from self._message(each, f"{name}.{each.name}", (*path, _NESTED, index))
        for index, enum in enumerate(message.enum_type):
            yield from self._enum(enum, f"{name}.{enum.name}", (*path, _NESTED_ENUMS, index))

    def _enum(self, enum: EnumDescriptorProto, name: str, path: Path) -> Iterator[str]:
        yield self._heading(name, "enum", path)
        yield from _table(
            (f"{each.name} = {each.number}", "", self._comment((*path, _MEMBERS, index)))
            for index, each in enumerate(enum.value)
        )

    def _heading(self, name: str, kind: str, path: Path) -> str:
        anchor = escape(f"{self._file.package}.{name}")
        return f'<h2 id="{anchor}">{kind} {escape(name)}</h2>\n<p>{self._comment(path)}</p>'

    def _comment(self, path: Path) -> str:
        return escape(self._comments.get(path, ""))


def _table(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table. Names are plain text, while types and comments are HTML."""
    lines = [
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{comment}</td></tr>"
        for name, kind, comment in rows
    ]
    if lines:
        yield "\n".join(["<table>", *lines, "</table>"])


def _type(field: FieldDescriptorProto, entry: DescriptorProto | None) -> str:
    if entry is not None:
        key, value = entry.field
        return f"map of {_type(key, None)} to {_type(value, None)}"
    named = _link(field.type_name) if field.type_name else _scalar(field)
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {named}"
    return f"optional {named}" if field.proto3_optional else named


def _scalar(field: FieldDescriptorProto) -> str:
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _in_oneof(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    if not field.HasField("oneof_index") or field.proto3_optional:
        return ""
    return f", one of <code>{escape(message.oneof_decl[field.oneof_index].name)}</code>"


def _link(type_name: str) -> str:
    full = type_name.removeprefix(".")
    return f'<a href="#{escape(full)}">{escape(full.rpartition(".")[2])}</a>'


def _streamed(streaming: bool) -> str:
    return "stream " if streaming else ""
