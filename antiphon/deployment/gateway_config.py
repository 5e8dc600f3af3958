"""The gateway's settings, arranged in groups. Each group is a class whose docstring describes its
purpose.

A setting is identified by its group and its name, as in `queue.timeout_s`.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from antiphon.deployment.auth_config import AuthConfig
from antiphon.deployment.bounds import (
    Ahead,
    Bytes,
    HostName,
    Instruction,
    Name,
    Origin,
    Positive,
    Seconds,
    TraceEndpoint,
    check_origin,
)
from antiphon.deployment.discovery import DiscoveryConfig
from antiphon.deployment.setting_groups import SettingGroups
from antiphon.deployment.sharing_config import SharingConfig, check_shared_ports
from antiphon.deployment.tls_config import TlsConfig
from antiphon.values.history import MAX_HISTORY_BYTES

MAX_IMAGE_BYTES = 32 << 20


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on the requests in progress and on the requests that are waiting for a slot.

    If the queue is full, a request is rejected immediately with status 429. It is also rejected if,
    judging by the duration of recent calls, it is unlikely to start in time. Keys of equal priority
    are served round-robin. Among requests with the same key, audio is served before text, and
    conversation turns are served before both.
    """

    # The maximum number of requests in progress. Additional requests wait in the queue, as do
    # requests for which a stage has no free slot.
    max_calls: Positive = 64
    # The maximum number of requests in the queue. Set this to 0 to disable the queue.
    max_waiting: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 256
    # The maximum time in seconds that a request may spend in the queue.
    timeout_s: Seconds = 60.0


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on the memory of all requests and on individual requests.

    The limits of the model apply as well.
    """

    # The maximum total size of the data that the gateway holds for clients, in bytes. The default
    # is 1024 MiB. Uploads (including the decoded data), waiting requests, and unread answers can
    # each use up to a quarter of it, and conversations up to half. Requests that are kept for
    # failover use the remaining memory and are dropped when it is needed. Streamed answers are not
    # included, because they are held back in the stages. The process itself needs another 512 MiB
    # or so.
    max_memory_bytes: Bytes = 1 << 30
    # The maximum duration of a request in seconds.
    request_timeout_s: Seconds = 600.0
    # The maximum time in seconds that a request may go without a message from any stage.
    idle_timeout_s: Seconds = 60.0
    # The maximum size of a request body in bytes.
    max_body_bytes: Bytes = 64 << 20
    # The maximum number of JSON values in a body, or of fields in a gRPC message. JSON values are
    # counted by their commas and brackets, including those inside strings.
    max_body_values: Positive = 200_000
    # The maximum time in seconds for a request body to arrive.
    body_timeout_s: Seconds = 60.0
    # The maximum number of parts in a multipart form.
    max_form_parts: Positive = 64
    # The maximum size of each part of a form that is not a file, in bytes.
    max_form_field_bytes: Bytes = 64 << 10
    # The maximum number of parts in the messages of a conversation.
    max_parts: Positive = 4096
    # The maximum number of recordings among these parts.
    max_recordings: Positive = 64
    # The maximum length of a recording in seconds. Each second becomes 64 kB of input for the
    # model, however small the file is.
    max_recording_s: Seconds = 600.0
    # The maximum total length of all recordings in a request, in seconds.
    max_audio_s: Seconds = 900.0
    # The maximum total size of the text and recordings in a request's options in bytes, as sent by
    # the client. Each option also has limits of its own, which its stage describes. The recordings
    # also count towards the limits on recordings.
    max_option_bytes: Bytes = 16 << 20
    # The maximum number of functions that a request may offer to the model.
    max_tools: Positive = 128
    # The maximum size of a function with its schema in bytes.
    max_tool_bytes: Bytes = 64 << 10
    # The maximum number of answers per chat request (`n`). Each answer is a separate call.
    max_choices: Positive = 8
    # The maximum total size of the image files in an answer, in bytes.
    max_image_bytes: Bytes = MAX_IMAGE_BYTES


class ConnectionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on client connections to the HTTP and gRPC endpoints.

    The process needs one file descriptor for each HTTP connection and three for each gRPC
    connection. If it cannot open that many files, the connection limits of both endpoints are
    lowered.
    """

    # The maximum number of HTTP connections. Beyond this limit, a new connection replaces the one
    # that has been idle the longest.
    max_connections: Positive = 512
    # The maximum number of gRPC connections. If this limit is reached and a client with a different
    # address connects, its connection replaces an existing one. Out of the connections from the
    # address that has the most, this is the one that has been silent the longest.
    max_grpc_connections: Positive = 512
    # The maximum number of gRPC connections from one address. For IPv6, it applies to a /64
    # network.
    max_grpc_connections_per_address: Positive = 384
    # The maximum time in seconds that a connection may be idle or may take to send a request line
    # and headers.
    head_timeout_s: Seconds = 10.0
    # The maximum total size of a request line and its headers, in bytes.
    max_head_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 32 << 10
    # A connection is closed if its client does not read any of its answer for this many seconds.
    send_timeout_s: Seconds = 30.0
    # The interval in seconds at which comments are sent while a stream of server-sent events has no
    # data. Such a stream begins as soon as its request is queued. Set this to less than the idle
    # timeout of any proxy between the clients and the gateway.
    keepalive_s: Seconds = 15.0


class ConversationsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on conversations, over both WebSocket and gRPC.

    A conversation only occupies a call and slots while it is being answered.
    """

    # The maximum number of concurrent conversations.
    max_conversations: Positive = 256
    # The maximum duration of a conversation over gRPC in seconds.
    max_conversation_s: Seconds = 3600.0
    # If a client retrieves an item that is larger than this, in bytes, the item is sent without its
    # recordings.
    max_retrieved_bytes: Bytes = 4 << 20
    # If a turn lasts longer than this many seconds, stages begin to process it while it is still
    # being spoken. The work that remains at the end of the turn then no longer depends on the
    # length of the turn. During this time, the turn occupies a slot of each stage that can process
    # it. These slots are not subject to the queue or to the limits of a key.
    listen_after_s: Seconds = 4.0
    # A turn releases these slots if neither audio nor a request for an answer arrives for this many
    # seconds.
    listen_idle_s: Seconds = 5.0


class ResumeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for conversations that can continue on another gateway.

    On request, a client receives the sealed state of its conversation. Any gateway with the same
    key accepts this state.
    """

    # The maximum size of a saved conversation in bytes. It contains all of the text and the latest
    # recordings that fit.
    bytes: Bytes = 256 << 10
    # The number of seconds for which a saved conversation remains valid.
    within_s: Seconds = 3600.0
    # A file with one key per line, each at least 32 characters long. Conversations are sealed with
    # the first key, and all keys are accepted. The file is reloaded in the same way as `keys_file`.
    # Without a file, each gateway uses its own key and cannot continue other gateways'
    # conversations.
    key_file: str = ""


class MediaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for incoming recordings and outgoing audio."""

    # The maximum number of child processes that decode recordings. It applies separately to files
    # that need up to 0.25 s of CPU time, to files that need up to 2 s, and to files that need more.
    # WAV files are decoded in the gateway itself.
    decoder_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    # The number of threads that encode audio for the HTTP endpoints. The most expensive format is
    # Opus, for which one second of audio takes about 20 ms on one thread.
    encoder_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    # Whether to encode each recording in a chat independently, as in a realtime conversation. If
    # this is false, all recordings are padded to the longest one, as in a plain call of the
    # reference implementation. Independent recordings do not change when a longer one follows, so
    # the results computed for them can be reused.
    recordings_alone: bool = False
    # The instruction that asks the model to transcribe a recording. The language and other
    # information from the client are appended to it.
    transcribe_instruction: Instruction = "Transcribe the audio into text."
    # The number of seconds for which a chat can refer to a spoken answer by its audio ID.
    spoken_keep_s: Seconds = 3600.0
    # The maximum total size of the transcripts that are stored for this purpose, in bytes. If there
    # is no room for an answer, it expires immediately.
    max_spoken_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20


class FetchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for recordings, images and videos that requests refer to by http or https URLs."""

    # Whether to fetch such files. If this is false, only data URLs are accepted.
    urls: bool = False
    # The maximum time in seconds for fetching a file, including redirects.
    timeout_s: Seconds = 10.0
    # The maximum total size of the files fetched for one request, in bytes.
    max_fetch_bytes: Bytes = 32 << 20
    # Networks, such as 10.1.2.0/24, from which files may be fetched in addition to public
    # addresses.
    networks: tuple[str, ...] = ()


class NamesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Aliases for the model and for the voices of the checkpoint."""

    # Aliases for the model.
    model_aliases: tuple[Name, ...] = ()
    # Maps aliases to voices of the checkpoint.
    voice_aliases: dict[Name, Name] = {}
    # Whether to accept the names of OpenAI's models and voices. If this is true, the names of
    # OpenAI's speech models and of voice frameworks' default chat models become aliases for the
    # model. The names of OpenAI's voices (alloy, ash, ...) are assigned to the checkpoint's voices
    # in turn.
    openai_names: bool = True


class PacingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on how far output may run ahead of its consumer."""

    # The maximum number of seconds by which audio may run ahead of what the client has read.
    max_ahead_seconds: Ahead = 30.0
    # The maximum number of seconds by which a stage's output may run ahead of the next stage.
    max_stage_ahead_seconds: Ahead = 4.0
    # The same limit in positions, which is used if neither the pipeline nor the next stage declares
    # the number of positions per second.
    max_stage_ahead_positions: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)] = 256


class HealthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for detecting failed replicas."""

    # The interval in seconds at which the gateway tries to reconnect to a replica that is down.
    reconnect_s: Seconds = 1.0
    # The gateway probes a replica if it has not reported its load for this many seconds.
    probe_interval_s: Seconds = 0.5
    # A probe fails if the replica neither answers nor sends anything else for this many seconds.
    # Time during which the gateway itself was not running does not count. After one failed probe,
    # the replica receives no new requests. After two, its calls end.
    probe_timeout_s: Seconds = 1.5
    # The number of consecutive sessions that must fail on a replica before it is ejected. An
    # ejected replica receives no sessions for some time. It then receives a single session, and if
    # that succeeds, the replica is used again. At most half of a stage's replicas are ejected at
    # the same time.
    eject_failures: Positive = 3
    # The duration of a replica's first ejection in seconds. It doubles with each further ejection.
    eject_s: Seconds = 2.0
    # The maximum duration of an ejection in seconds.
    max_eject_s: Seconds = 60.0


class FailoverConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for continuing answers on other replicas after a stage has been lost."""

    # The maximum number of times that an answer may be continued. Set this to 0 to disable
    # failover.
    failovers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 3
    # The maximum time in seconds that an answer waits for a slot on other replicas.
    wait_s: Seconds = 5.0
    # The maximum time in seconds that an answer waits for the lost replica to return, if there are
    # no others. A request that arrives during this time waits as well.
    return_s: Seconds = 2.0
    # The maximum number of answers that this gateway may continue within one minute.
    failovers_per_minute: Positive = 1024
    # The maximum size of the history that is sent to the stages when an answer is continued, in
    # bytes. The history is the part of the answer that the client already has. It takes up about
    # 400 bytes per second of speech. If it exceeds this limit, the stages compute that part again.
    # Set this to 0 to always compute it again.
    max_history_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_HISTORY_BYTES)] = 1 << 20


class TraceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for request traces. They include the spans of stages that have `trace_endpoint`
    set.
    """

    # The endpoint to send traces to (OTLP over gRPC, such as http://collector:4317). If it is
    # empty, tracing is disabled.
    endpoint: TraceEndpoint = ""
    # The fraction of requests to trace.
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    # Whether a client's `traceparent` determines whether its requests are traced.
    clients: bool = False


class ScalerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for the autoscaling signal, which is the number of slots required for each stage."""

    # The host:port on which the gateway serves the signal to KEDA and its own demand to other
    # gateways (gRPC without encryption). If it is empty, this endpoint is disabled.
    listen: str = ""
    # The addresses of this endpoint on all gateways, if discovery does not find them. The list may
    # include this gateway.
    peers: tuple[str, ...] = ()
    # A gateway that has not reported for this many seconds is not counted.
    silence_s: Seconds = 3.0
    # The fraction of its slots that should be in use on each replica.
    target: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.7


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gateway's settings, including its endpoints and access control."""

    # The address of the HTTP endpoint. `localhost` and `[::]` cover the addresses of both families,
    # as in a stage's `listen` setting.
    http_listen: str = "localhost:8000"
    # The address of the gRPC endpoint. It has the same form as `http_listen`.
    grpc_listen: str = "localhost:0"
    # The address on which metrics are served at /metrics. If it is empty, they are served on
    # `http_listen`.
    metrics_listen: str = ""
    discovery: DiscoveryConfig = DiscoveryConfig()
    # Encryption for both endpoints. Only use the endpoints without it in trusted networks.
    tls: TlsConfig | None = None
    # The origins whose pages may call the HTTP API and open WebSockets, as sent by browsers. From
    # pages of other origins, WebSockets are rejected, and so are requests that browsers send
    # without a preflight, such as forms. Examples of origins:
    # https://app.example, null, file://, app://obsidian.md. `*` can stand for a whole host
    # (chrome-extension://*), for all subdomains of a host (https://*.example.com) or for any port
    # (http://localhost:*). `*` alone stands for all origins. Pages from these origins can also
    # reach a gateway in a private network.
    cors_origins: tuple[Origin, ...] = ()
    # The host names under which clients reach the gateway over HTTP. Without a `keys_file`,
    # requests for any other host are rejected, except for IP addresses and localhost. This prevents
    # web pages whose host name resolves to this gateway from sending requests to it (DNS
    # rebinding). "*.example.com" stands for all subdomains, and "*" for all names.
    host_names: tuple[HostName, ...] = ()
    # The file with the API keys and their limits. Use `python -m antiphon_gateway keys new NAME` to
    # create a key. If this is empty, API keys are not used.
    keys_file: str = ""
    # The minimum interval in seconds at which the gateway checks whether `keys_file` has changed.
    keys_reload_s: Seconds = 1.0
    # Other ways to authenticate callers: the header of a trusted proxy, or a JWT. If one of them or
    # `keys_file` is set, callers that cannot be identified are rejected.
    auth: AuthConfig = AuthConfig()
    # How to treat request fields that neither OpenAI nor vLLM defines. With "ignore", they are
    # ignored and listed in the response header `x-antiphon-ignored`. With "reject", the request is
    # rejected.
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    # When the gateway is stopped, it rejects new requests and gives requests in progress this many
    # seconds to finish. The remaining ones then end with an error. A conversation ends after its
    # current answer. The process manager must allow more time than this before it kills the
    # process.
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    # The groups of settings.
    queue: QueueConfig = QueueConfig()
    limits: LimitsConfig = LimitsConfig()
    connections: ConnectionsConfig = ConnectionsConfig()
    conversations: ConversationsConfig = ConversationsConfig()
    resume: ResumeConfig = ResumeConfig()
    media: MediaConfig = MediaConfig()
    fetch: FetchConfig = FetchConfig()
    names: NamesConfig = NamesConfig()
    pacing: PacingConfig = PacingConfig()
    health: HealthConfig = HealthConfig()
    failover: FailoverConfig = FailoverConfig()
    trace: TraceConfig = TraceConfig()
    scaler: ScalerConfig = ScalerConfig()
    sharing: SharingConfig = SharingConfig()

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` if a setting is invalid in a way that its type cannot express."""
        for origin in self.cors_origins:
            check_origin(origin)
        if self.sharing.ports:
            check_shared_ports(self.metrics_listen, self.scaler.listen)

    @property
    def authenticates(self) -> bool:
        """Whether callers must be identified by a key, a proxy or a token."""
        return bool(self.keys_file or self.auth.trusted_proxy or self.auth.jwt)


_OF_MEMORY = "a share of gateway.limits.max_memory_bytes"
GATEWAY_SETTINGS = SettingGroups(
    GatewayConfig,
    {
        "queue": QueueConfig,
        "limits": LimitsConfig,
        "connections": ConnectionsConfig,
        "conversations": ConversationsConfig,
        "resume": ResumeConfig,
        "media": MediaConfig,
        "fetch": FetchConfig,
        "names": NamesConfig,
        "pacing": PacingConfig,
        "health": HealthConfig,
        "failover": FailoverConfig,
        "trace": TraceConfig,
        "scaler": ScalerConfig,
        "sharing": SharingConfig,
    },
    {
        "scaler.max_calls": "a constant",
        "scaler.refused_s": "a constant",
        "limits.max_upload_bytes": _OF_MEMORY,
        "queue.max_waiting_bytes": _OF_MEMORY,
        "connections.max_unread_bytes": _OF_MEMORY,
        "conversations.max_conversation_bytes": _OF_MEMORY,
        "failover.max_kept_bytes": _OF_MEMORY,
    },
)
"""The gateway's settings, their groups, and the replacements for former settings."""
