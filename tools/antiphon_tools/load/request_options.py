"""Options of a model that requests give (`--option`), as the endpoints and a stage take them."""

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
"""By name, the text that was given, or the WAV file that it named."""


def read_given(texts: Iterable[str]) -> GivenOptions:
    """`NAME=TEXT` and `NAME=@FILE`. Raises `InvalidArgument` for what is neither."""
    found: dict[str, str | bytes] = {}
    for text in texts:
        name, marked, value = text.partition("=")
        if not name or not marked or name in found:
            raise InvalidArgument(
                f"--option {text}: must be NAME=TEXT or NAME=@FILE, each NAME once"
            )
        found[name] = _file(text, value[1:]) if value.startswith(FILE_MARK) else value
    return found


def to_client(given: GivenOptions, numbers: Sequence[str]) -> dict[str, str | float | bytes]:
    """As the SDK takes them; `numbers` are the names of those that the server wants as numbers."""
    return {
        name: _number(name, value) if name in numbers else value for name, value in given.items()
    }


def to_json(given: GivenOptions, numbers: Sequence[str]) -> dict[str, Any]:
    """As the HTTP endpoints take them."""
    return {
        name: {"data": base64.b64encode(value).decode(), "format": "wav"}
        if isinstance(value, bytes)
        else value
        for name, value in to_client(given, numbers).items()
    }


def to_stage(given: GivenOptions, options: Sequence[Option]) -> dict[str, OptionValue]:
    """As a stage with these options takes them; others are left out.

    Raises `InvalidArgument` for a value of another kind, or a recording of another rate: it is
    the gateway that resamples.
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
        wanted = f"a recording, {FILE_MARK}FILE" if isinstance(value, str) else "text"
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
            f"--option {option.name}: a stage takes {option.sample_rate_hz} samples a second, the "
            f"file has {rate_hz}; convert it, or load the gateway",
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
