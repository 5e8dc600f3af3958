"""Counts the fields of a serialized message without parsing it.

A field of two bytes takes up more than a hundred bytes once it has been parsed, and parsing holds
the GIL. For this reason, the fields of messages from untrusted clients are counted first.
"""

from __future__ import annotations

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from antiphon.errors import InvalidArgument

_MAX_VARINT_BYTES = 10
_TEXTS = (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES)


def check_fields(data: bytes, descriptor: Descriptor, most: int) -> None:
    """Raise `InvalidArgument` if the message has more than `most` fields. Fields of nested messages
    count as well.

    Each packed number counts as one field. The error is also raised if the bytes aren't a valid
    message.
    """
    count = 0
    inside = [(0, len(data), descriptor)]
    while inside:
        place, end, message = inside.pop()
        while place < end:
            key, place = _varint(data, place, end)
            count += 1
            match key & 7:
                case 0:
                    _, place = _varint(data, place, end)
                case 1:
                    place += 8
                case 5:
                    place += 4
                case 2:
                    size, place = _varint(data, place, end)
                    field = message.fields_by_number.get(key >> 3)
                    if field is not None and field.message_type is not None:
                        inside.append((place, min(place + size, end), field.message_type))
                    elif field is not None and field.type not in _TEXTS:
                        count += size
                    place += size
                case _:
                    raise _malformed()
            if count > most:
                raise InvalidArgument(
                    f"the message has more than {most} fields (gateway.limits.max_body_values)"
                )
        if place > end:
            raise _malformed()


def _varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """Return the varint that starts at `place`, and the index of the byte after it."""
    number = 0
    for index in range(min(_MAX_VARINT_BYTES, end - place)):
        byte = data[place + index]
        number |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return number, place + index + 1
    raise _malformed()


def _malformed() -> InvalidArgument:
    return InvalidArgument("the request is not a valid message of this method")
