"""`History` <-> its message. Reading checks sizes; `InvalidArgument` names the field."""

from __future__ import annotations

import numpy as np

from antiphon.errors import InvalidArgument
from antiphon.history import MAX_HISTORY_BYTES, History
from antiphon.v1 import session_pb2

_ID = np.dtype("<i4")
_CODE = np.dtype("<u2")


def history_to_proto(history: History, kinds: tuple[str, ...]) -> session_pb2.History:
    """The message, with those of `ids` and `frames` that are named."""
    message = session_pb2.History()
    if "ids" in kinds:
        message.ids = history.ids.astype(_ID).tobytes()
    if "frames" in kinds and len(history.frames):
        message.frames = history.frames.astype(_CODE).tobytes()
        message.code_groups = history.frames.shape[1]
    return message


def history_from_proto(message: session_pb2.History) -> History:
    """The ids and frames, which are views of what came."""
    size = len(message.ids) + len(message.frames)
    if size > MAX_HISTORY_BYTES:
        raise InvalidArgument(
            f"history: has {size} bytes of at most {MAX_HISTORY_BYTES}; leave it out, and the "
            "stages make all anew",
            field="history",
        )
    if len(message.ids) % _ID.itemsize:
        raise InvalidArgument(
            f"history.ids: {len(message.ids)} bytes are no int32", field="history.ids"
        )
    frame_bytes = message.code_groups * _CODE.itemsize
    if len(message.frames) % frame_bytes if frame_bytes else message.frames:
        raise InvalidArgument(
            f"history.frames: {len(message.frames)} bytes are no frames of {message.code_groups} "
            "codes, uint16 each",
            field="history.frames",
        )
    count = len(message.frames) // frame_bytes if frame_bytes else 0
    codes = np.frombuffer(message.frames, _CODE)
    return History(
        np.frombuffer(message.ids, _ID), codes.reshape(count, message.code_groups if count else 0)
    )
