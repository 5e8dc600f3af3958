"""The gRPC channel and server options that all antiphon processes use.

gRPC's message size limit is disabled. Its default of 4 MiB is too small for the hidden states of 30
seconds of audio, and sizes are limited per session anyway.

Keepalive pings detect a peer that has been stopped (SIGSTOP) or whose host has disappeared. A
server notices this within `KEEPALIVE_TIME_MS` + `PING_TIMEOUT_MS`, and a client notices it within
`WATCHED_KEEPALIVE_MS` + `PING_TIMEOUT_MS`. If a process is killed, its peers notice immediately,
without a ping. gRPC answers pings on its own threads, so they are answered even if the peer's event
loop or GIL is busy. The gateway's health checks detect more kinds of failures, and they are faster.
They also tolerate a pause of the whole machine. gRPC's ping timer doesn't tolerate such a pause,
because it expires before the answer is read from the socket. The ping timeout therefore has to be
longer.
"""

from __future__ import annotations

KEEPALIVE_TIME_MS = 1000
# The keepalive interval for peers that are also monitored in other ways. The gateway probes its
# stages and receives their reports, and when a session ends on one stage, it ends on all of them.
# The interval is long because pings cause half of the CPU usage of an idle fleet.
WATCHED_KEEPALIVE_MS = 5000
# The ping timeout. It must be longer than the pauses of a busy machine. This version of gRPC
# ignores grpc.keepalive_timeout_ms and applies its general ping timeout instead, which defaults to
# one minute.
PING_TIMEOUT_MS = 5000
MAX_RECONNECT_BACKOFF_MS = 1000
# The timeout for a single connection attempt. gRPC reads it from the option for the minimum
# backoff.
CONNECT_TIMEOUT_MS = 2000

_MESSAGE_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", PING_TIMEOUT_MS),
    ("grpc.http2.ping_timeout_ms", PING_TIMEOUT_MS),
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
    *{**dict(_MESSAGE_OPTIONS), "grpc.keepalive_time_ms": WATCHED_KEEPALIVE_MS}.items(),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    # Don't close the connection of a peer that pings more often than this.
    ("grpc.http2.max_ping_strikes", 0),
)

# A client's network may stall for a second, so the endpoint for clients is more tolerant. If a
# client has stopped reading, its connection is closed after `gateway.connections.send_timeout_s`.
CLIENT_KEEPALIVE_MS = 10_000

CLIENT_SERVER_OPTIONS: tuple[tuple[str, int], ...] = tuple(
    {
        **dict(SERVER_OPTIONS),
        "grpc.keepalive_time_ms": CLIENT_KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": CLIENT_KEEPALIVE_MS,
        "grpc.http2.ping_timeout_ms": CLIENT_KEEPALIVE_MS,
    }.items()
)
