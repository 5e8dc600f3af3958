"""Converts a `History` to and from its message. The sizes in a message are validated."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from antiphon.errors import InvalidArgument
from antiphon.v1 import session_pb2
from antiphon.values.history import MAX_HISTORY_BYTES, History

_ID = np.dtype("<i4")
_CODE = np.dtype("<u2")
_LATENT = np.dtype("<f4")

Value = TypeVar("Value", bound=np.generic)


def history_to_proto(history: History, kinds: tuple[str, ...]) -> session_pb2.History:
    """Convert the given parts of a history to a message. Valid parts are `ids`, `frames` and
    `latents`.
    """
    message = session_pb2.History()
    if "ids" in kinds:
        message.ids = history.ids.astype(_ID).tobytes()
    if "frames" in kinds and len(history.frames):
        message.frames = history.frames.astype(_CODE).tobytes()
        message.code_groups = history.frames.shape[1]
    if "latents" in kinds and len(history.latents):
        message.latents = history.latents.astype(_LATENT).tobytes()
        message.latent_width = history.latents.shape[1]
    return message


def history_from_proto(message: session_pb2.History) -> History:
    """Convert a message to a history whose arrays are views of the message's bytes.

    If a size is invalid, `InvalidArgument` is raised with the name of the field.
    """
    size = len(message.ids) + len(message.frames) + len(message.latents)
    if size > MAX_HISTORY_BYTES:
        raise InvalidArgument(
            f"history: has {size} bytes; the maximum is {MAX_HISTORY_BYTES}; leave it out, and "
            "the stages recompute everything",
            field="history",
        )
    if len(message.ids) % _ID.itemsize:
        raise InvalidArgument(
            f"history.ids: {len(message.ids)} bytes are not a sequence of int32",
            field="history.ids",
        )
    return History(
        np.frombuffer(message.ids, _ID),
        _rows("frames", message.frames, _CODE, message.code_groups, "codes, uint16 each"),
        _rows("latents", message.latents, _LATENT, message.latent_width, "values, float32 each"),
    )


def _rows(
    name: str, data: bytes, dtype: np.dtype[Value], width: int, what: str
) -> npt.NDArray[Value]:
    """Return an array with the shape [n, width]. If there is no data, n is 0.

    Raises `InvalidArgument` if the last row is incomplete.
    """
    row_bytes = width * dtype.itemsize
    if len(data) % row_bytes if row_bytes else data:
        raise InvalidArgument(
            f"history.{name}: {len(data)} bytes are not a sequence of frames of {width} {what}",
            field=f"history.{name}",
        )
    if not data:
        return np.empty((0, 0), dtype)
    return np.frombuffer(data, dtype).reshape(-1, width)
