"""The gateway's settings, in groups. Each group is a class whose docstring describes what the group
is for.

The name of a setting is unique if it is preceded by the name of its group, as in `queue.timeout_s`.
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
from antiphon.deployment.tls_config import TlsConfig
from antiphon.values.history import MAX_HISTORY_BYTES

MAX_IMAGE_BYTES = 32 << 20


class QueueConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on the requests in progress and on the requests that wait for a slot of a stage.

    A request is rejected immediately with status 429 if the queue is full. The same happens if the
    request could probably not start in time, judging by the durations of recent calls. Keys of
    equal priority are served round-robin. Among the requests of one key, audio is served before
    text, and the turns of conversations are served before both.
    """

    # The maximum number of requests in progress. Further requests wait in the queue. Requests also
    # wait if a stage has no free slot.
    max_calls: Positive = 64
    # The maximum number of waiting requests. If it is 0, no request waits.
    max_waiting: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 256
    # The maximum time for which a request may wait, in seconds.
    timeout_s: Seconds = 60.0


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits for the memory of all requests and for a single request.

    The limits of the model apply as well.
    """

    # The maximum total size of the data that the gateway holds for clients, in bytes; the default
    # is 1024 MiB. Uploads with the data that is decoded from them, waiting requests, and unread
    # answers may use a quarter each, and conversations a half. Requests that are kept for failover
    # use the rest, and are dropped if others need it. Streamed answers wait in the stages instead.
    # The process needs about 512 MiB in addition.
    max_memory_bytes: Bytes = 1 << 30
    # The maximum duration of a request in seconds.
    request_timeout_s: Seconds = 600.0
    # The maximum time in seconds during which none of the stages sends anything for a request.
    idle_timeout_s: Seconds = 60.0
    # The maximum size of a request body in bytes.
    max_body_bytes: Bytes = 64 << 20
    # The maximum number of JSON values in a body, or of fields in a gRPC message. JSON values are
    # counted by their commas and brackets, including those inside texts.
    max_body_values: Positive = 200_000
    # The maximum time in seconds until the body of a request has arrived.
    body_timeout_s: Seconds = 60.0
    # The maximum number of parts in a multipart form.
    max_form_parts: Positive = 64
    # The maximum size of each part of a form that is not a file, in bytes.
    max_form_field_bytes: Bytes = 64 << 10
    # The maximum number of parts in the messages of a conversation.
    max_parts: Positive = 4096
    # The maximum number of recordings among these parts.
    max_recordings: Positive = 64
    # The maximum length of a recording in seconds. Each second is 64 kB of input for the model, no
    # matter how small the file is.
    max_recording_s: Seconds = 600.0
    # The maximum total length of all recordings in a request, in seconds.
    max_audio_s: Seconds = 900.0
    # The maximum total size of the texts and recordings in a request's options as they are sent, in
    # bytes. In addition, each option has its own limits, which its stage describes. The recordings
    # also count towards the limits on recordings.
    max_option_bytes: Bytes = 16 << 20
    # The maximum number of functions that a request may offer to the model.
    max_tools: Positive = 128
    # The maximum size of a function with its schema in bytes.
    max_tool_bytes: Bytes = 64 << 10
    # The maximum number of answers that a chat request may ask for (`n`). Each answer is a separate
    # call.
    max_choices: Positive = 8
    # The maximum total size of the image files in an answer, in bytes.
    max_image_bytes: Bytes = MAX_IMAGE_BYTES


class ConnectionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits for the connections of clients at both endpoints.

    The process needs one file descriptor for each HTTP connection and three for each gRPC
    connection. If the process cannot open that many, the limits on connections at both endpoints
    are lowered.
    """

    # The maximum number of connections at the HTTP endpoint. Beyond this limit, a new connection
    # replaces the one that has been idle for the longest time.
    max_connections: Positive = 512
    # The maximum number of connections at the gRPC endpoint. If this limit is reached and a client
    # with another address connects, the address that has the most connections loses the one that
    # has been silent for the longest time.
    max_grpc_connections: Positive = 512
    # The maximum number of gRPC connections from one address. For IPv6, it applies to a /64
    # network.
    max_grpc_connections_per_address: Positive = 384
    # The maximum time in seconds for which a connection may be idle, or may take to send a request
    # line with its headers.
    head_timeout_s: Seconds = 10.0
    # The maximum size of a request line with its headers in bytes.
    max_head_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 32 << 10
    # A connection is closed if its client reads nothing of its answer for this many seconds.
    send_timeout_s: Seconds = 30.0
    # A stream of server-sent events starts when its request is queued. If nothing has been sent for
    # this many seconds, a comment is sent. Set this to less than the timeouts of proxies between
    # the client and the gateway.
    keepalive_s: Seconds = 15.0


class ConversationsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits for all conversations over WebSocket and gRPC.

    A conversation uses a call and slots only while it is being answered.
    """

    # The maximum number of concurrent conversations.
    max_conversations: Positive = 256
    # The maximum duration of a conversation over gRPC in seconds.
    max_conversation_s: Seconds = 3600.0
    # If a client retrieves an item that is larger than this, the item is sent without its
    # recordings.
    max_retrieved_bytes: Bytes = 4 << 20
    # If a turn lasts longer than this many seconds, stages start to process it while it is still
    # being spoken. The remaining work at the end of the turn then does not depend on its length.
    # This uses a slot of each stage that can process the turn. These slots are not limited by a
    # queue or a key.
    listen_after_s: Seconds = 4.0
    # A turn releases these slots if no audio arrives for it and no answer is requested for this
    # many seconds.
    listen_idle_s: Seconds = 5.0


class ResumeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conversations that can continue on another gateway.

    On request, a client receives the sealed state of its conversation. Every gateway that has the
    same key accepts it.
    """

    # The maximum size of a saved conversation in bytes. It contains the texts first, followed by
    # the latest recordings that fit.
    bytes: Bytes = 256 << 10
    # The time in seconds for which a saved conversation is accepted.
    within_s: Seconds = 3600.0
    # A file that contains one key per line, each at least 32 characters long. The first key is used
    # to seal conversations, and all keys are accepted. The file is read again under the same
    # conditions as `keys_file`. Without a file, each gateway has its own key and cannot continue
    # conversations of other gateways.
    key_file: str = ""


class MediaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for incoming recordings and outgoing audio."""

    # The number of child processes that decode recordings. There are this many processes for files
    # that take up to 0.25 s of CPU time, the same number for files that take up to 2 s, and the
    # same number for files that take longer. WAV files are decoded in the gateway itself.
    decoder_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    # The number of threads that encode the audio of all answers at the HTTP endpoints. Opus is the
    # most expensive format. One second of it takes about 20 ms of one thread.
    encoder_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    # If this is true, each recording in a chat is encoded independently, as in a realtime
    # conversation. If it is false, all recordings are padded to the longest one, as in a plain call
    # of the reference. Independent recordings do not change when a longer one follows, so the
    # results that were computed for them can be reused.
    recordings_alone: bool = False
    # The instruction that the model receives with a recording that is to be transcribed. The
    # language, and other information that the client provides, is appended.
    transcribe_instruction: Instruction = "Transcribe the audio into text."
    # The time in seconds for which a chat can refer to a spoken answer by the ID of its audio.
    spoken_keep_s: Seconds = 3600.0
    # The maximum total size of the transcripts that are kept for this purpose, in bytes. An answer
    # that exceeds it expires immediately.
    max_spoken_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20


class FetchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Recordings, images and videos that requests refer to by http or https URLs."""

    # Whether such files are fetched. If not, only data URLs are accepted.
    urls: bool = False
    # The maximum time for fetching a file in seconds, including redirects.
    timeout_s: Seconds = 10.0
    # The maximum total size of the files that are fetched for one request, in bytes.
    max_fetch_bytes: Bytes = 32 << 20
    # Networks, such as 10.1.2.0/24, from which files may be fetched in addition to public
    # addresses.
    networks: tuple[str, ...] = ()


class NamesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Additional names for the model and for the voices of the checkpoint."""

    # Additional names for the model.
    model_aliases: tuple[Name, ...] = ()
    # Maps additional names to voices of the checkpoint.
    voice_aliases: dict[Name, Name] = {}
    # Whether names of OpenAI's models and voices are accepted. If this is true, the names of
    # OpenAI's models for speech input or output, and of the models that voice frameworks use by
    # default for chat, are aliases of the model. The names of OpenAI's voices (alloy, ash, ...) are
    # assigned to the voices of the checkpoint in turn.
    openai_names: bool = True


class PacingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits on how far output may be ahead of its consumer."""

    # The maximum amount of audio that may be ahead of what the client has read, in seconds.
    max_ahead_seconds: Ahead = 30.0
    # The maximum amount of output of one stage that may be ahead of the next stage, in seconds.
    max_stage_ahead_seconds: Ahead = 4.0
    # The same limit in positions. It is used if neither the pipeline nor the next stage declares
    # the number of positions per second.
    max_stage_ahead_positions: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)] = 256


class HealthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for detecting failed replicas of the stages."""

    # The interval in seconds at which the gateway tries to reach a replica that is down.
    reconnect_s: Seconds = 1.0
    # The gateway probes a replica if it has not reported its load for this many seconds.
    probe_interval_s: Seconds = 0.5
    # A probe fails if the replica neither answers nor sends anything else for this many seconds.
    # Time during which the gateway itself was not running does not count. After one failed probe,
    # the replica receives no new requests. After two, its calls end.
    probe_timeout_s: Seconds = 1.5
    # The number of consecutive sessions that must fail on a replica before it is ejected. An
    # ejected replica receives no sessions for some time. After that, it receives a single session,
    # and more of them if it succeeds. At most half of the replicas of a stage are ejected at the
    # same time.
    eject_failures: Positive = 3
    # The time in seconds for which a replica is ejected at first. It doubles each time.
    eject_s: Seconds = 2.0
    # The maximum time in seconds for which a replica is ejected.
    max_eject_s: Seconds = 60.0


class FailoverConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers that continue on other replicas when a stage is lost."""

    # The maximum number of times that one answer may continue. If it is 0, the answer fails when a
    # stage is lost.
    failovers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 3
    # The maximum time in seconds for which an answer waits for a slot on other replicas.
    wait_s: Seconds = 5.0
    # The maximum time in seconds for which an answer waits for the lost replica if there are no
    # others.
    return_s: Seconds = 1.0
    # The maximum number of answers of this gateway that may continue within one minute.
    failovers_per_minute: Positive = 1024
    # The maximum size of the history that is sent to the stages when an answer continues, in bytes.
    # The history is the part of the answer that the client already has. It is about 400 bytes per
    # second of speech. If it is larger, or if this setting is 0, the stages compute this part
    # again.
    max_history_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_HISTORY_BYTES)] = 1 << 20


class TraceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Traces of requests. They include spans of the stages if `trace_endpoint` is set for the
    stages as well.
    """

    # The endpoint to which traces are sent (OTLP over gRPC, such as http://collector:4317). If it
    # is empty, nothing is traced.
    endpoint: TraceEndpoint = ""
    # The fraction of requests that are traced.
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    # Whether a client's `traceparent` determines if its requests are traced.
    clients: bool = False


class ScalerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The autoscaling signal, which is the number of slots that are required for each stage."""

    # The host:port on which KEDA requests the signal and other gateways report their demand (gRPC
    # without encryption). If it is empty, the gateway does not listen.
    listen: str = ""
    # The addresses of the same endpoint on all gateways, if they are not found by discovery. The
    # list may include this gateway.
    peers: tuple[str, ...] = ()
    # A gateway that reports nothing for this many seconds is not counted.
    silence_s: Seconds = 3.0
    # The fraction of its slots that should be in use on each replica.
    target: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.7


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gateway's settings, including its endpoints and who may use them."""

    # The address of the HTTP endpoint. `localhost` and `[::]` stand for addresses of both families,
    # as in `listen` of a stage.
    http_listen: str = "localhost:8000"
    # The address of the gRPC endpoint. It has the same form as `http_listen`.
    grpc_listen: str = "localhost:0"
    # The address on which metrics are served at /metrics. If it is empty, they are served on
    # `http_listen`.
    metrics_listen: str = ""
    discovery: DiscoveryConfig = DiscoveryConfig()
    # Encryption at both endpoints. Without it, use the endpoints only in trusted networks.
    tls: TlsConfig | None = None
    # The origins whose pages may call the HTTP API and open WebSockets, in the form in which
    # browsers send them: https://app.example, null, file://, app://obsidian.md. `*` can stand for a
    # whole host (chrome-extension://*), for the names below a host (https://*.example.com) or for
    # any port (http://localhost:*). `*` alone stands for all origins. Pages of these origins may
    # also reach a gateway in a private network.
    cors_origins: tuple[Origin, ...] = ()
    # The names under which clients reach the gateway over HTTP. If there is no `keys_file`, a
    # request for any other name is refused, unless the name is an address or localhost. Otherwise a
    # web page whose name resolves to this gateway could send requests to it. "*.example.com" stands
    # for all names that end in this way, and "*" stands for all names.
    host_names: tuple[HostName, ...] = ()
    # The file with the API keys and their limits. `python -m antiphon_gateway keys new NAME`
    # creates a key. If it is empty, there is no authentication.
    keys_file: str = ""
    # The file is read again when it has changed. Requests check this at most once in this many
    # seconds.
    keys_reload_s: Seconds = 1.0
    # Other ways in which callers can be identified: the header of a trusted proxy, or a JWT. If one
    # of them or `keys_file` is set, callers that cannot be identified are refused.
    auth: AuthConfig = AuthConfig()
    # How to treat a field of a request that is defined neither by OpenAI nor by vLLM. With
    # "ignore", the field is ignored and named in the response header `x-antiphon-ignored`. With
    # "reject", the request is refused.
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    # When the gateway is stopped, it refuses new requests immediately and lets requests in progress
    # finish within this many seconds. The remaining ones then end with an error. A conversation
    # ends after its current answer. Whatever stops the process must wait for longer than this.
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

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` if a setting is invalid in a way that its type cannot express."""
        for origin in self.cors_origins:
            check_origin(origin)

    @property
    def authenticates(self) -> bool:
        """Whether callers must be identified by a key, a proxy or a token."""
        return bool(self.keys_file or self.auth.trusted_proxy or self.auth.jwt)


GROUPS: dict[str, type[msgspec.Struct]] = {
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
}
"""The groups of the gateway's settings by name."""

_OF_MEMORY = "a share of gateway.limits.max_memory_bytes"
WITHDRAWN: dict[str, str] = {
    "scaler.max_calls": "a constant",
    "scaler.refused_s": "a constant",
    "limits.max_upload_bytes": _OF_MEMORY,
    "queue.max_waiting_bytes": _OF_MEMORY,
    "connections.max_unread_bytes": _OF_MEMORY,
    "conversations.max_conversation_bytes": _OF_MEMORY,
    "failover.max_kept_bytes": _OF_MEMORY,
}
"""Former settings of the gateway by group and name, and what has replaced them."""


def withdrawn(name: str) -> str | None:
    """Return what has replaced a former setting, given its group and name or its flat name."""
    for path, replacement in WITHDRAWN.items():
        group, _, leaf = path.partition(".")
        if name in (path, f"{group}_{leaf}") or (name == leaf and grouped_path(name) is None):
            return replacement
    return None


def grouped_path(name: str) -> tuple[str, str] | None:
    """Return the group and the name of a setting, given its former name, which had no group. The
    result is None if there is no such setting.

    The former name is either the present name or the present name preceded by its group. For
    example, `max_waiting` is now `queue.max_waiting`, and `queue_timeout_s` is now
    `queue.timeout_s`.
    """
    for group, kind in GROUPS.items():
        leaf = name.removeprefix(f"{group}_")
        if leaf != name and leaf in kind.__struct_fields__:
            return group, leaf
    found = [group for group, kind in GROUPS.items() if name in kind.__struct_fields__]
    return (found[0], name) if len(found) == 1 else None
