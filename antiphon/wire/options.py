"""Converts options and their values to and from proto messages.

Unlike convert.py, this module requires numpy.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.options import Option, OptionKind, OptionValue

_KIND_TO_PROTO = {
    OptionKind.TEXT: stage_pb2.OPTION_KIND_TEXT,
    OptionKind.NUMBER: stage_pb2.OPTION_KIND_NUMBER,
    OptionKind.AUDIO: stage_pb2.OPTION_KIND_AUDIO,
}
_KIND_FROM_PROTO = {proto: kind for kind, proto in _KIND_TO_PROTO.items()}


def option_to_proto(option: Option) -> stage_pb2.OptionDescription:
    """Convert an option to the message that `Describe` returns."""
    return stage_pb2.OptionDescription(
        name=option.name,
        kind=_KIND_TO_PROTO[option.kind],
        choices=option.choices,
        max_bytes=option.max_bytes,
        least=option.least,
        most=option.most,
        sample_rate_hz=option.sample_rate_hz,
        max_s=option.max_s,
        description=option.description,
        instructs=option.instructs,
    )


def option_from_proto(proto: stage_pb2.OptionDescription) -> Option | None:
    """Return the option, or None if this version doesn't support its kind."""
    kind = _KIND_FROM_PROTO.get(proto.kind)
    if kind is None:
        return None
    return Option(
        name=proto.name,
        kind=kind,
        description=proto.description,
        choices=tuple(proto.choices),
        max_bytes=proto.max_bytes,
        least=proto.least,
        most=proto.most,
        sample_rate_hz=proto.sample_rate_hz,
        max_s=proto.max_s,
        instructs=proto.instructs,
    )


def option_value_to_proto(value: OptionValue) -> session_pb2.OptionValue:
    """Convert a value to a message for a stage."""
    if isinstance(value, str):
        return session_pb2.OptionValue(text=value)
    if isinstance(value, np.ndarray):
        return session_pb2.OptionValue(float32=value.astype("<f4", copy=False).tobytes())
    return session_pb2.OptionValue(number=value)


def option_values_from_proto(
    protos: Mapping[str, session_pb2.OptionValue],
) -> dict[str, OptionValue]:
    """Return the values by name. Raises `InvalidArgument` if a value is invalid."""
    return {name: _value(name, proto) for name, proto in protos.items()}


def _value(name: str, proto: session_pb2.OptionValue) -> OptionValue:
    match proto.WhichOneof("value"):
        case "text":
            return proto.text
        case "number":
            return proto.number
        case "float32" if len(proto.float32) % 4 == 0:
            return np.frombuffer(proto.float32, "<f4")
    field = f"options.{name}"
    raise InvalidArgument(f"{field}: has no value of a known kind", field=field)
