"""gRPC channel and server options, the same in every antiphon process.

gRPC's message size limit is off: its default of 4 MiB is less than the hidden rows of 30 s of
audio. Sizes are bounded per session instead.

Keepalive detects a peer that is stopped (SIGSTOP) or whose host vanished: a server within
`KEEPALIVE_TIME_MS` + `PING_TIMEOUT_MS`, a client within `WATCHED_KEEPALIVE_MS` + `PING_TIMEOUT_MS`.
A process killed on a live host is detected at once. gRPC's own threads answer pings, so a busy
event loop or GIL of the peer does not matter. The gateway's health checks detect more kinds of
failure, and sooner. They also tolerate a pause of the whole machine. gRPC's timer does not: it
expires before the answer in the socket is read. So pings get the longer timeout.
"""

from __future__ import annotations

KEEPALIVE_TIME_MS = 1000
# Where a peer is watched by other means, too: the gateway has its stages' reports and its probes,
# and a stage's session ends with the other stages'. Pings are half of what an idle fleet costs.
WATCHED_KEEPALIVE_MS = 5000
# Ping timeout; longer than a busy machine may pause. This gRPC ignores grpc.keepalive_timeout_ms in
# favour of the timeout of any ping, which is a minute by default.
PING_TIMEOUT_MS = 5000
MAX_RECONNECT_BACKOFF_MS = 1000
# Timeout of one connection attempt. gRPC reads it from the option for the shortest backoff.
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
    # Do not close connections of peers that ping faster than this.
    ("grpc.http2.max_ping_strikes", 0),
)

# Clients' networks may stall for a second, so their endpoint is more tolerant. Clients that do not
# read are closed by `gateway.connections.send_timeout_s`.
CLIENT_KEEPALIVE_MS = 10_000

CLIENT_SERVER_OPTIONS: tuple[tuple[str, int], ...] = tuple(
    {
        **dict(SERVER_OPTIONS),
        "grpc.keepalive_time_ms": CLIENT_KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": CLIENT_KEEPALIVE_MS,
        "grpc.http2.ping_timeout_ms": CLIENT_KEEPALIVE_MS,
    }.items()
)
