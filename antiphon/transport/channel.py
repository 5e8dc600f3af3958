"""Options for gRPC channels and servers. All antiphon processes use the same options.

gRPC's message size limit is disabled, because its default of 4 MiB is too small for the hidden
states of 30 seconds of audio. Sizes are limited per session instead.

Keepalive pings detect a peer that is stopped (SIGSTOP) or whose host has disappeared. A server
detects this within `KEEPALIVE_TIME_MS` + `PING_TIMEOUT_MS`, and a client within
`WATCHED_KEEPALIVE_MS` + `PING_TIMEOUT_MS`. A killed process is detected immediately, without pings.
gRPC answers pings on its own threads, even if the event loop or the GIL of the peer is busy. The
gateway's health checks detect more types of failure, and detect them sooner. They also tolerate a
pause of the whole machine, whereas gRPC's ping timer would expire before the answer is read from
the socket. The ping timeout is therefore longer.
"""

from __future__ import annotations

KEEPALIVE_TIME_MS = 1000
# The keepalive interval for peers that are also monitored in other ways. The gateway receives
# reports from its stages and probes them, and if a session ends on one stage, it ends on all of
# them. The interval is long because pings account for half of the CPU usage of an idle fleet.
WATCHED_KEEPALIVE_MS = 5000
# The ping timeout, which must be longer than a pause of a busy machine. This version of gRPC
# ignores grpc.keepalive_timeout_ms, and uses the general ping timeout instead, whose default is one
# minute.
PING_TIMEOUT_MS = 5000
MAX_RECONNECT_BACKOFF_MS = 1000
# The timeout for one connection attempt, which gRPC takes from the option for the minimum backoff.
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
    # Don't close the connection if a peer sends pings more frequently.
    ("grpc.http2.max_ping_strikes", 0),
)

# The network of a client may stall for a second, so the endpoint for clients is more tolerant. The
# connections of clients that do not read are closed after `gateway.connections.send_timeout_s`.
CLIENT_KEEPALIVE_MS = 10_000

CLIENT_SERVER_OPTIONS: tuple[tuple[str, int], ...] = tuple(
    {
        **dict(SERVER_OPTIONS),
        "grpc.keepalive_time_ms": CLIENT_KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": CLIENT_KEEPALIVE_MS,
        "grpc.http2.ping_timeout_ms": CLIENT_KEEPALIVE_MS,
    }.items()
)
