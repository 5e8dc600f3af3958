"""Options in a JSON body: text, a number, or a recording as base64."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antiphon.errors import InvalidArgument
from gateway.doors.http.json_body import decode_body, invalid
from gateway.media.audio_in import FORMATS_IN, Recording
from gateway.media.options_in import MAX_OPTIONS, OptionInput


class RecordingOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recording as base64."""

    data: str
    format: str


_decoder: msgspec.json.Decoder[str | float | RecordingOption] = msgspec.json.Decoder(
    str | float | RecordingOption
)


def options_from_json(given: Mapping[str, msgspec.Raw]) -> dict[str, OptionInput]:
    """The options. Raises `InvalidArgument` with `options.<name>`."""
    if len(given) > MAX_OPTIONS:
        raise invalid("options", f"more than {MAX_OPTIONS} of them")
    return {name: _option(f"options.{name}", value) for name, value in given.items()}


def _option(field: str, json: msgspec.Raw) -> OptionInput:
    try:
        value = decode_body(_decoder, bytes(json))
    except InvalidArgument as error:
        raise invalid(
            field,
            'must be text, a number, or a recording: {"data": base64, "format": "wav"}; '
            f"{error.message}",
        ) from error
    if not isinstance(value, RecordingOption):
        return value
    check_recording_format(value.format, field)
    return Recording(field, value.data)


def check_recording_format(name: str, field: str) -> None:
    """Raise `InvalidArgument` for the name of a format that is not read. What the file is shows at
    its beginning."""
    if name not in FORMATS_IN:
        raise invalid(field, f"no format {name!r}; there are: {', '.join(FORMATS_IN)}")
