"""What both clients need of a connection."""

from __future__ import annotations

from antiphon.errors import Cancelled, FailedPrecondition

MAX_MESSAGE_BYTES = 256 << 20
"""Room for an hour of audio that is delivered whole."""

# While an answer is awaited, a gateway that is stopped or out of reach is noticed in the sum of
# the two. The second is also what gRPC goes by, whose own default is a minute.
KEEPALIVE_TIME_MS = 10_000
PING_TIMEOUT_MS = 10_000

CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
)


def check_open(closed: bool) -> None:
    """Raise `FailedPrecondition` for a client that was closed."""
    if closed:
        raise FailedPrecondition("the client is closed")


def closed_by_caller() -> Cancelled:
    """What reading a cancelled answer raises."""
    return Cancelled("the answer was cancelled by its reader")
