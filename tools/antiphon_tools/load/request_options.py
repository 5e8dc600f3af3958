"""Model options given with `--option`, in the formats that the endpoints and stages expect."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from antiphon.errors import InvalidArgument
from antiphon.values.options import Option, OptionKind, OptionValue

FILE_MARK = "@"
NUMBER = OptionKind.NUMBER.value

GivenOptions = Mapping[str, str | bytes]
"""Maps option names to the given text, or to the content of the given WAV file."""


def read_given(texts: Iterable[str]) -> GivenOptions:
    """Parse `NAME=TEXT` and `NAME=@FILE`. Raises `InvalidArgument` if an option is malformed."""
    found: dict[str, str | bytes] = {}
    for text in texts:
        name, marked, value = text.partition("=")
        if not name or not marked or name in found:
            raise InvalidArgument(
                f"--option {text}: must be NAME=TEXT or NAME=@FILE, and each NAME can only be "
                "used once"
            )
        found[name] = _file(text, value[1:]) if value.startswith(FILE_MARK) else value
    return found


def to_client(given: GivenOptions, numbers: Sequence[str]) -> dict[str, str | float | bytes]:
    """Return the options in the format of the SDK.

    `numbers` contains the names of options whose values are numbers.
    """
    return {
        name: _number(name, value) if name in numbers else value for name, value in given.items()
    }


def to_json(given: GivenOptions, numbers: Sequence[str]) -> dict[str, Any]:
    """Return the options in the format of the HTTP endpoints."""
    return {
        name: {"data": base64.b64encode(value).decode(), "format": "wav"}
        if isinstance(value, bytes)
        else value
        for name, value in to_client(given, numbers).items()
    }


def to_stage(given: GivenOptions, options: Sequence[Option]) -> dict[str, OptionValue]:
    """Return the options that a stage has, in the format of the stage.

    Raises `InvalidArgument` if a value has the wrong type or if a recording has the wrong sample
    rate. Stages do not resample recordings, because the gateway does.
    """
    return {
        option.name: _for_stage(option, given[option.name])
        for option in options
        if option.name in given
    }


def _for_stage(option: Option, value: str | bytes) -> OptionValue:
    ready: OptionValue
    if option.kind is OptionKind.NUMBER:
        ready = _number(option.name, value)
    elif isinstance(value, bytes) is not (option.kind is OptionKind.AUDIO):
        wanted = f"a recording, as {FILE_MARK}FILE" if isinstance(value, str) else "text"
        raise InvalidArgument(f"--option {option.name}: must be {wanted}", field=option.name)
    else:
        ready = _samples(option, value) if isinstance(value, bytes) else value
    option.check(ready, field=f"--option {option.name}")
    return ready


def _samples(option: Option, wav: bytes) -> OptionValue:
    try:
        samples, rate_hz = soundfile.read(io.BytesIO(wav), dtype="float32", always_2d=True)
    except soundfile.LibsndfileError as error:
        raise InvalidArgument(f"--option {option.name}: {error}", field=option.name) from error
    if rate_hz != option.sample_rate_hz:
        raise InvalidArgument(
            f"--option {option.name}: the stage requires a sample rate of "
            f"{option.sample_rate_hz} Hz, but the file has {rate_hz}; convert the file, or test "
            "the gateway",
            field=option.name,
        )
    return np.asarray(samples.mean(axis=1), np.float32)


def _number(name: str, value: str | bytes) -> float:
    try:
        return float(value)
    except ValueError as error:
        raise InvalidArgument(f"--option {name}: must be a number", field=name) from error


def _file(text: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgument(f"--option {text}: {error}") from error
