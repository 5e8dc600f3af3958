"""gRPC channel and server options, the same for every antiphon process.

Message size is not limited by gRPC (its default of 4 MiB is less than the hidden
rows of 30 s of audio); bounds are kept per session instead.

Keepalive notices a peer that is stopped (SIGSTOP) or whose host vanished, within
`KEEPALIVE_TIME_MS` + `PING_TIMEOUT_MS`; a killed process on a live host is noticed at
once. Pings are answered by gRPC's own threads, which need neither the peer's event loop
nor its interpreter. The gateway's probes notice a stage sooner and in more cases; they also
tolerate a pause of the whole machine, after which gRPC's timer expires before the answer
that lies in the socket is read. So pings get more time than probes.
"""

from __future__ import annotations

KEEPALIVE_TIME_MS = 1000
# How long a ping may stay unanswered; longer than a busy machine may pause.
# grpc.keepalive_timeout_ms is shadowed in this gRPC by the timeout of any ping, which is a
# minute unless it is set.
PING_TIMEOUT_MS = 5000
MAX_RECONNECT_BACKOFF_MS = 1000
# How long one attempt may take; gRPC takes it from the option for the shortest backoff.
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
    *_MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", KEEPALIVE_TIME_MS // 2),
    # Pings of a peer that is quicker than this end no connection.
    ("grpc.http2.max_ping_strikes", 0),
)

# At the endpoint for clients, whose networks may lose a second: their process is not ours, and
# one that takes nothing is ended by `gateway.send_timeout_s`.
CLIENT_KEEPALIVE_MS = 10_000

CLIENT_SERVER_OPTIONS: tuple[tuple[str, int], ...] = tuple(
    {
        **dict(SERVER_OPTIONS),
        "grpc.keepalive_time_ms": CLIENT_KEEPALIVE_MS,
        "grpc.keepalive_timeout_ms": CLIENT_KEEPALIVE_MS,
        "grpc.http2.ping_timeout_ms": CLIENT_KEEPALIVE_MS,
    }.items()
)
