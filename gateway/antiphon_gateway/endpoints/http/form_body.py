"""Parses a multipart form while it is being received. Files are not decoded.

python-multipart finds the parts. It processes every boundary in Python, which blocks the event
loop. For this reason, the number of boundaries is checked first.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import InvalidArgument, told
from antiphon_gateway.endpoints.http.errors import BodyTooLarge, TooManyValues
from antiphon_gateway.endpoints.http.fields import IgnoredFields, Unsupported
from antiphon_gateway.endpoints.http.json_body import field_error, invalid

# python-multipart not only raises an error for invalid data, but also logs the data verbatim.
logging.getLogger("python_multipart").setLevel(logging.CRITICAL)

FORM = "multipart/form-data"
LIST_SUFFIX = "[]"
"""The suffix for field names that can occur more than once."""

FormFile = Annotated[bytes, msgspec.Meta(extra_json_schema={"format": "binary"})]
"""The type of a file in a form's struct."""

FormValue = bytes | list[str]
"""The content of a file, or the values of all text fields with the same name."""

Form = TypeVar("Form", bound=msgspec.Struct)


class FormBody:
    """A form that is being received. Raises `InvalidArgument` if its content type isn't that of a
    form.
    """

    def __init__(self, content_type: bytes, config: GatewayConfig) -> None:
        kind, options = parse_options_header(content_type)
        boundary = options.get(b"boundary", b"")
        if kind != FORM.encode() or not boundary:
            raise InvalidArgument(
                f"the body must be {FORM} with a boundary, but the content-type is "
                f"{told(content_type.decode(errors='replace'))}"
            )
        self._config = config
        self._boundary = b"--" + boundary
        self._boundaries = 0
        self._parts = 0
        self._ended = False
        self._values: dict[str, FormValue] = {}
        self._header = self._header_value = b""
        self._headers: dict[bytes, bytes] = {}
        self._name = ""
        self._is_file = False
        self._data: list[bytes] = []
        self._size = 0
        try:
            self._parser = MultipartParser(
                boundary,
                {
                    "on_part_begin": self._begin,
                    "on_header_begin": self._begin_header,
                    "on_header_field": self._take_header_name,
                    "on_header_value": self._take_header_value,
                    "on_header_end": self._end_header,
                    "on_headers_finished": self._take_headers,
                    "on_part_data": self._take_data,
                    "on_part_end": self._end_part,
                    "on_end": self._end,
                },
            )
        except FormParserError as error:
            raise _no_form(error) from error

    def add(self, piece: bytes) -> None:
        """Add the next piece. Raises `TooManyValues`, `BodyTooLarge` or `InvalidArgument` if it is
        rejected.
        """
        self._boundaries += piece.count(self._boundary)
        # The last boundary ends the form.
        self._check_parts(self._boundaries - 1)
        try:
            self._parser.write(piece)
        except FormParserError as error:
            raise _no_form(error) from error

    def values(self) -> dict[str, FormValue]:
        """Return all fields and files. This can be called only once. Raises `InvalidArgument` if
        the form is incomplete.
        """
        if not self._ended:
            raise InvalidArgument("the body is not a valid multipart form: it ends within a part")
        values, self._values = self._values, {}
        return values

    def _check_parts(self, parts: int) -> None:
        most = self._config.limits.max_form_parts
        if parts > most:
            raise TooManyValues(
                f"the form has more than {most} parts (gateway.limits.max_form_parts)"
            )

    def _begin(self) -> None:
        self._parts += 1
        self._check_parts(self._parts)
        self._headers = {}
        self._data, self._size = [], 0

    def _begin_header(self) -> None:
        self._header = self._header_value = b""

    def _take_header_name(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end].lower()

    def _take_header_value(self, data: bytes, start: int, end: int) -> None:
        self._header_value += data[start:end]

    def _end_header(self) -> None:
        self._headers[self._header] = self._header_value

    def _take_headers(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode(errors="replace")
        if not name:
            raise InvalidArgument("the form has a part without a name")
        self._name = name
        self._is_file = b"filename" in options
        if self._is_file and name in self._values:
            raise invalid(name, "comes twice")

    def _take_data(self, data: bytes, start: int, end: int) -> None:
        self._size += end - start
        most = self._config.limits.max_form_field_bytes
        if not self._is_file and self._size > most:
            raise BodyTooLarge(
                f"{self._name}: has more than {most} bytes (gateway.limits.max_form_field_bytes); "
                "if it is a file, its part must have a filename",
                field=self._name,
            )
        self._data.append(data[start:end])

    def _end_part(self) -> None:
        data, self._data = b"".join(self._data), []
        if self._is_file:
            self._values[self._name] = data
            return
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise invalid(self._name, "is not UTF-8") from error
        known = self._values.setdefault(self._name, [])
        if not isinstance(known, list):
            raise invalid(self._name, "comes twice")
        known.append(text)

    def _end(self) -> None:
        self._ended = True


def decode_form(
    values: dict[str, FormValue],
    kind: type[Form],
    unsupported: Mapping[str, Unsupported],
    ignored: IgnoredFields,
) -> Form:
    """Convert the form to a struct, following the rules in `fields.py`.

    Text is converted to numbers and booleans if necessary. The names of lists can be written with
    or without brackets. Raises `InvalidArgument` or `NotImplementedYet` with the field.
    """
    known = {each.encode_name: each for each in msgspec.structs.fields(kind)}
    given: dict[str, str | bytes | list[str]] = {}
    for name, value in values.items():
        field = name if name in known else name + LIST_SUFFIX
        if field not in known:
            _leave_out(name, value, unsupported, ignored)
            continue
        if isinstance(value, bytes):
            given[field] = value
            continue
        texts = [each for each in value if each]
        if field.endswith(LIST_SUFFIX):
            given[field] = texts
        elif len(value) > 1:
            raise invalid(name, "comes twice")
        elif known[field].type == FormFile:
            # Otherwise, text would be decoded as base64.
            raise invalid(
                name, "must be a file, but is a text field; send it as a part with a filename"
            )
        elif texts or known[field].required:
            given[field] = value[0]
    try:
        return msgspec.convert(given, kind, strict=False, builtin_types=(bytes,))
    except msgspec.ValidationError as error:
        raise field_error(error, kind) from error


def _leave_out(
    name: str,
    value: FormValue,
    unsupported: Mapping[str, Unsupported],
    ignored: IgnoredFields,
) -> None:
    """Handle a field that doesn't exist in the form's struct."""
    if (known := unsupported.get(name.removesuffix(LIST_SUFFIX))) is None:
        if value and (isinstance(value, bytes) or any(value)):
            ignored.add(name, name)
    elif isinstance(value, list):
        for text in value:
            known.check(name, text)


def _no_form(error: FormParserError) -> InvalidArgument:
    return InvalidArgument(f"the body is not a valid multipart form: {error}")
