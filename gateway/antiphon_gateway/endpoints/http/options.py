"""Parses the model options in a JSON body. An option can be text, a number, or a base64
recording.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from antiphon.errors import InvalidArgument
from antiphon.values.options import Option
from antiphon_gateway.endpoints.http.fields import Unsupported
from antiphon_gateway.endpoints.http.json_body import decode_body, invalid
from antiphon_gateway.media.audio_in import FORMATS_IN, Recording
from antiphon_gateway.media.data_url import data_or_url
from antiphon_gateway.media.options_in import MAX_OPTIONS, OptionInput
from antiphon_gateway.media.remote import RemoteUrl

_OTHER_NAMES = {"wave": "wav", "vnd.wave": "wav", "mpeg": "mp3", "mpga": "mp3", "oga": "ogg"}
"""Names of formats by media types and file extensions."""


class RecordingOption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A recording in base64."""

    data: str
    format: str | None = None


_decoder: msgspec.json.Decoder[str | float | RecordingOption] = msgspec.json.Decoder(
    str | float | RecordingOption
)


def options_from_json(
    given: Mapping[str, msgspec.Raw], where: str = "options"
) -> dict[str, OptionInput]:
    """Return the options in the field `where`. If an option is invalid, `InvalidArgument` is raised
    with the field `<where>.<name>`.
    """
    if len(given) > MAX_OPTIONS:
        raise invalid(where, f"must have at most {MAX_OPTIONS} entries")
    return {name: _option(f"{where}.{name}", value) for name, value in given.items()}


def _option(field: str, json: msgspec.Raw) -> OptionInput:
    try:
        value = decode_body(_decoder, bytes(json))
    except InvalidArgument as error:
        raise invalid(
            field,
            f'must be a string, a number, or a recording: {{"data": base64, "format": '
            f'"wav"}}; {error.message}',
        ) from error
    if not isinstance(value, RecordingOption):
        return value
    data = data_or_url(value.data, field)
    if isinstance(data, RemoteUrl):
        raise invalid(field, "URLs are not supported; send the recording itself as base64")
    check_recording_format(value.format, field)
    return Recording(field, data)


def options_outside(options: Collection[Option]) -> dict[str, Unsupported]:
    """Return unsupported fields for all option names that are not in `options`."""
    return {
        each.name: Unsupported(remedy=f"use options.{each.name}, which is an option of this model")
        for each in options
    }


def check_recording_format(given: str | None, field: str) -> None:
    """Raise `InvalidArgument` if this format can't be read.

    Its name can be missing, in upper case, or a media type. The actual format is determined from
    the content of the file.
    """
    name = (given or "").strip().lower().removeprefix("audio/").removeprefix("x-")
    if name and _OTHER_NAMES.get(name, name) not in FORMATS_IN:
        raise invalid(field, f"unsupported format {given!r}; use one of: {', '.join(FORMATS_IN)}")
