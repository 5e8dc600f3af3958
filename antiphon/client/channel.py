"""What both clients need of a connection."""

from __future__ import annotations

from antiphon.errors import Cancelled, FailedPrecondition

MAX_MESSAGE_BYTES = 256 << 20
"""Room for an hour of audio that is delivered whole."""

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)


def check_open(closed: bool) -> None:
    """Raise `FailedPrecondition` for a client that was closed."""
    if closed:
        raise FailedPrecondition("the client is closed")


def closed_by_caller() -> Cancelled:
    """What reading a cancelled answer raises."""
    return Cancelled("the answer was cancelled by its reader")
