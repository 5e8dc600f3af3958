"""gRPC channel and server options, the same for every antiphon process.

Message size is not limited by gRPC (its default of 4 MiB is less than the hidden
rows of 30 s of audio); bounds are kept per session instead. Keepalive notices a
peer whose host vanished; a killed process on a live host is noticed at once.
"""

from __future__ import annotations

KEEPALIVE_TIME_MS = 1000
KEEPALIVE_TIMEOUT_MS = 1000
MAX_RECONNECT_BACKOFF_MS = 1000
# How long one attempt may take; gRPC takes it from the option for the shortest backoff.
CONNECT_TIMEOUT_MS = 2000

_MESSAGE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
)

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    *_MESSAGE_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", CONNECT_TIMEOUT_MS),
    ("grpc.max_reconnect_backoff_ms", MAX_RECONNECT_BACKOFF_MS),
)

SERVER_OPTIONS: tuple[tuple[str, int], ...] = (
    *_MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    ("grpc.http2.max_ping_strikes", 0),
)
