"""Options for gRPC channels and servers. All antiphon processes use the same options.

gRPC's limit on the message size is disabled. Its default of 4 MiB is less than the size of the
hidden rows for 30 s of audio. Sizes are limited per session instead.

Keepalive pings detect a peer that is stopped (SIGSTOP) or whose host has disappeared. A server
detects this within `KEEPALIVE_TIME_MS` + `PING_TIMEOUT_MS`, and a client within
`WATCHED_KEEPALIVE_MS` + `PING_TIMEOUT_MS`. If only the process was killed, this is detected
immediately. gRPC answers pings on threads of its own, even if the event loop or the GIL of the peer
is busy. The gateway's health checks detect more types of failure, and they do so earlier. They also
tolerate a pause of the whole machine. gRPC's timer does not, because it expires before the answer
in the socket is read. Therefore the timeout for pings is longer.
"""

from __future__ import annotations

KEEPALIVE_TIME_MS = 1000
# The keepalive interval for peers that are also monitored in other ways. The gateway receives
# reports from its stages and probes them, and a session on one stage ends together with the session
# on all other stages. Pings cause half of the CPU usage of an idle fleet.
WATCHED_KEEPALIVE_MS = 5000
# The ping timeout, which must be longer than a busy machine may pause. This version of gRPC ignores
# grpc.keepalive_timeout_ms. It uses the general timeout for pings instead, which is one minute by
# default.
PING_TIMEOUT_MS = 5000
MAX_RECONNECT_BACKOFF_MS = 1000
# The timeout for one connection attempt. gRPC takes it from the option for the shortest backoff.
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
    # Do not close connections of peers that send pings more frequently.
    ("grpc.http2.max_ping_strikes", 0),
)

# Networks of clients may stall for a second, so the endpoint for clients is more tolerant.
# Connections of clients that do not read are closed after `gateway.connections.send_timeout_s`.
CLIENT_KEEPALIVE_MS = 10_000

CLIENT_SERVER_OPTIONS: tuple[tuple[str, int], ...] = tuple(
    {
        **dict(SERVER_OPTIONS),
        "grpc.keepalive_time_ms": CLIENT_KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": CLIENT_KEEPALIVE_MS,
        "grpc.http2.ping_timeout_ms": CLIENT_KEEPALIVE_MS,
    }.items()
)
