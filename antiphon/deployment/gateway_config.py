"""The gateway's settings, in groups: each a class whose docstring says what the group bounds.

Each setting has a name of its own, at the latest with its group's before it: `queue.timeout_s`.
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
    """Requests in flight, and requests that wait for a slot of a stage.

    A request that exceeds the queue, or that could not begin in time by the durations of recent
    calls, is rejected at once with a 429. Keys of equal priority are served round-robin. Of one key
    audio goes before text, and a turn of a conversation before both.
    """

    # Requests in flight. Further ones wait, and so do those for which a stage has no free slot.
    max_calls: Positive = 64
    # Requests that wait, and the bytes that clients sent with them. With `max_waiting` 0 nothing
    # waits.
    max_waiting: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 256
    max_waiting_bytes: Bytes = 256 << 20
    # How long a request may wait.
    timeout_s: Seconds = 60.0


class LimitsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What one request may send, hold and take. The model's own limits apply as well."""

    # A whole request, and the longest silence of all stages within one.
    request_timeout_s: Seconds = 600.0
    idle_timeout_s: Seconds = 60.0
    # A body's bytes, its JSON values (commas and brackets are counted, also in texts) or a gRPC
    # message's fields, and how long a body may take to arrive.
    max_body_bytes: Bytes = 64 << 20
    max_body_values: Positive = 200_000
    body_timeout_s: Seconds = 60.0
    # Bodies, fetched files and what is decoded of them, of all requests that do not wait for slots
    # yet.
    max_upload_bytes: Bytes = 256 << 20
    # Of a multipart form: its parts, and the bytes of each that is not a file.
    max_form_parts: Positive = 64
    max_form_field_bytes: Bytes = 64 << 10
    # Parts of a conversation's messages, recordings among them, and seconds of one recording and of
    # all. A second is 64 kB for the model, however small the file is.
    max_parts: Positive = 4096
    max_recordings: Positive = 64
    max_recording_s: Seconds = 600.0
    max_audio_s: Seconds = 900.0
    # The texts and recordings of a request's options together, as they are sent. Each option has
    # bounds of its own, which its stage describes; its recording counts above.
    max_option_bytes: Bytes = 16 << 20
    # Functions that a request may offer to the model, and the bytes of one with its schema.
    max_tools: Positive = 128
    max_tool_bytes: Bytes = 64 << 10
    # Answers that one chat may ask for (`n`); each takes a call of its own.
    max_choices: Positive = 8
    # The files of all images of one answer together.
    max_image_bytes: Bytes = MAX_IMAGE_BYTES


class ConnectionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Clients' connections at both endpoints.

    The process needs one descriptor for each HTTP connection and three for each gRPC connection. If
    it may open fewer, both endpoints have fewer connections.
    """

    # Connections at the HTTP endpoint. A new one takes the place of the one that has been idle for
    # longest.
    max_connections: Positive = 512
    # Connections at the gRPC endpoint, of all clients and of one address (IPv6: one /64 network).
    # When all are in use, the longest silent connection of the address with most of them gives way
    # to an address with fewer.
    max_grpc_connections: Positive = 512
    max_grpc_connections_per_address: Positive = 384
    # How long a connection may be idle, or take to send a request line with its headers, and how
    # large these may be.
    head_timeout_s: Seconds = 10.0
    max_head_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 32 << 10
    # How long a client may take nothing of its answer until its connection is closed, and all
    # whole answers together that wait to be taken. A stream waits with its stages.
    send_timeout_s: Seconds = 30.0
    max_unread_bytes: Bytes = 256 << 20
    # A stream of server-sent events begins when its request is queued, and brings a comment when it
    # has brought nothing for so long. Less than the timeouts of proxies on the way.
    keepalive_s: Seconds = 15.0


class ConversationsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conversations over WebSocket and gRPC together.

    Each takes a call and slots while it is answered.
    """

    # Conversations at a time, and how long one over gRPC may last.
    max_conversations: Positive = 256
    max_conversation_s: Seconds = 3600.0
    # What all of them may hold together: the recordings and texts of their items, and audio that is
    # none yet; one may hold `limits.max_body_bytes`. An item that a client retrieves comes without
    # its recordings if it is above `max_retrieved_bytes`.
    max_conversation_bytes: Bytes = 2 << 30
    max_retrieved_bytes: Bytes = 4 << 20
    # Stages hear a turn while it is spoken once it has lasted longer than this, which takes a slot
    # of those that can do something with it. What is left to do at its end then does not grow with
    # it. No queue and no key counts such slots, so a turn gives them up when it receives nothing
    # more, and no answer is asked for, for `listen_idle_s`.
    listen_after_s: Seconds = 4.0
    listen_idle_s: Seconds = 5.0


class ResumeConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conversations that another gateway continues.

    A client that asks for it receives the sealed state of its conversation, which a gateway with
    the same key accepts.
    """

    # Most bytes of a saved conversation: texts first, then the latest recordings that fit.
    bytes: Bytes = 256 << 10
    # How long a saved conversation is accepted.
    within_s: Seconds = 3600.0
    # A file with one key in each line, of at least 32 characters. The first seals, all are
    # accepted. It is read again as `keys_file` is. Without a file each gateway has a key of its
    # own, and continues no conversation of another gateway.
    key_file: str = ""


class MediaConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Recordings that come in, and audio that goes out."""

    # Child processes that decode recordings at a time: so many for files that take up to 0.25 s
    # of CPU time, as many for those that take up to 2 s, and as many for longer ones. WAV is
    # decoded in the gateway itself.
    decoder_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    # Threads that encode the audio of all answers at the HTTP endpoints. A second of opus, the
    # dearest, takes about 20 ms of one.
    encoder_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    # Whether a chat's recordings are heard each by itself, as those of a realtime conversation
    # are, and not padded to the longest, as the reference's plain call does. Then a longer one
    # that comes later changes nothing of them, and what was computed of them is reused.
    recordings_alone: bool = False
    # What the model is asked with a recording of which the text is wanted; the language, and what
    # else the client gives of it, follow.
    transcribe_instruction: Instruction = "Transcribe the audio into text."
    # How long a chat may refer to what it was answered in speech by the id of the audio, and the
    # transcripts that are kept for that together; an answer beyond that expires at once.
    spoken_keep_s: Seconds = 3600.0
    max_spoken_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20


class FetchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Recordings, images and videos that requests name by http and https URLs."""

    # Whether they are fetched; otherwise they must be data URLs.
    urls: bool = False
    # How long one may take with its redirects, and the bytes of all of a request.
    timeout_s: Seconds = 10.0
    max_fetch_bytes: Bytes = 32 << 20
    # Networks (such as 10.1.2.0/24) that are asked besides public addresses.
    networks: tuple[str, ...] = ()


class NamesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Other names for the model and for the checkpoint's voices."""

    # Other names for the model.
    model_aliases: tuple[Name, ...] = ()
    # Voices of the checkpoint, by alias.
    voice_aliases: dict[Name, Name] = {}
    # Whether the names of OpenAI's models that hear or speak, and of those that voice frameworks
    # chat with by default, are aliases of the model, and the names of its voices (alloy, ash, ...)
    # aliases of the checkpoint's voices, in turn.
    openai_names: bool = True


class PacingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How far output may run ahead of its consumer."""

    # Audio ahead of what the client has taken.
    max_ahead_seconds: Ahead = 30.0
    # One stage's output ahead of the next stage: in seconds, or in positions if neither the
    # pipeline nor the next stage declares how many a second has.
    max_stage_ahead_seconds: Ahead = 4.0
    max_stage_ahead_positions: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)] = 256


class HealthConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Failure detection of the stages' replicas."""

    # How often a replica that is down is tried again.
    reconnect_s: Seconds = 1.0
    # A replica is probed after so long without a report of its load. Then it may neither answer nor
    # send anything else for the timeout while the gateway runs. After one such silence it gets no
    # new requests, after two its calls end.
    probe_interval_s: Seconds = 0.5
    probe_timeout_s: Seconds = 1.5
    # A replica on which so many sessions have failed in a row gets none for a while, twice as long
    # each time: then one, and more if that is answered. Half of a stage's are never left out.
    eject_failures: Positive = 3
    eject_s: Seconds = 2.0
    max_eject_s: Seconds = 60.0


class FailoverConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Answers that are continued on other replicas when a stage is lost."""

    # How often one answer may be continued; 0: it fails.
    failovers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 3
    # How long it waits for a slot of other replicas, or, without others, for the lost one.
    wait_s: Seconds = 5.0
    return_s: Seconds = 1.0
    # Answers of this gateway that are continued in a minute.
    failovers_per_minute: Positive = 1024
    # Bytes of requests that are kept while they are answered. A request that does not fit fails
    # when a stage is lost.
    max_kept_bytes: Bytes = 256 << 20
    # Stages continue from what a client has of an answer (400 bytes for a second of speech) up to
    # so many bytes of it, and compute what is larger again, as they do with 0.
    max_history_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_HISTORY_BYTES)] = 1 << 20


class TraceConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Traces of requests, with the stages' part if their `trace_endpoint` is set as well."""

    # Where they go (OTLP over gRPC, such as http://collector:4317); empty: nothing is traced.
    endpoint: TraceEndpoint = ""
    # The share of the requests that is traced, and whether a client's `traceparent` decides it for
    # that client's own.
    ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    clients: bool = False


class ScalerConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The autoscaling signal: how many slots of each stage are wanted."""

    # host:port (gRPC, in the clear) at which KEDA asks, and other gateways report what is wanted
    # of them; empty: nowhere.
    listen: str = ""
    # The same of all gateways, if no discovery finds them; this one may be among them. A gateway
    # that reports nothing for `silence_s` is not counted.
    peers: tuple[str, ...] = ()
    silence_s: Seconds = 3.0
    # The share of its slots that a replica should have in use.
    target: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.7


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gateway: its endpoints and who may use them."""

    # As a stage's `listen`: localhost and [::] are of both families.
    http_listen: str = "localhost:8000"
    grpc_listen: str = "localhost:0"
    # Where the series are, at /metrics; empty: at `http_listen`.
    metrics_listen: str = ""
    discovery: DiscoveryConfig = DiscoveryConfig()
    # Encryption at both endpoints; without it they are for networks that nobody else reads.
    tls: TlsConfig | None = None
    # Origins whose pages may call the HTTP API and open WebSockets, as browsers send them:
    # https://app.example, null, file://, app://obsidian.md. `*` stands for a whole host
    # (chrome-extension://*), the names below one (https://*.example.com) or any port
    # (http://localhost:*), and alone for all origins. Their pages may also reach a gateway in a
    # private network.
    cors_origins: tuple[Origin, ...] = ()
    # Names by which clients reach the gateway over HTTP. Without `keys_file` a request for another
    # name is refused, unless it is an address or localhost: a page whose name resolves to this
    # gateway could ask otherwise. "*.example.com" allows all names that end so, "*" all there are.
    host_names: tuple[HostName, ...] = ()
    # File with the API keys that may ask, and what each may take (`python -m antiphon_gateway keys
    # new NAME` makes one); empty: there is no authentication. It is read again when it has changed,
    # which is checked with a request, at most every `keys_reload_s`.
    keys_file: str = ""
    keys_reload_s: Seconds = 1.0
    # What else may name a caller: a trusted proxy's header, or a JWT. With either of them, or with
    # `keys_file`, callers that nothing names are refused.
    auth: AuthConfig = AuthConfig()
    # Whether a field of a request that neither OpenAI nor vLLM defines is ignored and named in the
    # response header `x-antiphon-ignored`, or the request is refused.
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    # When it is stopped, the gateway refuses new requests at once and lets running ones finish for
    # so long; what is left then ends with an error. A conversation ends after the answer that is
    # being made. Whatever stops the process must wait longer.
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    # Groups of settings.
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
        """Raise `InvalidArgument` for a setting that no type can check."""
        for origin in self.cors_origins:
            check_origin(origin)

    @property
    def authenticates(self) -> bool:
        """Whether callers must be named by a key, a proxy or a token."""
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
"""The groups of settings of a gateway, by name."""

WITHDRAWN: dict[object, str] = {"scaler_max_calls": "a constant", "scaler_refused_s": "a constant"}
"""What former settings of the gateway are now."""


def grouped_path(name: str) -> tuple[str, str] | None:
    """The group and the name in it of a setting by its former, flat name; None if there is none.

    The former name is the present one, alone or after its group's: `max_waiting` is
    `queue.max_waiting`, `queue_timeout_s` is `queue.timeout_s`.
    """
    for group, kind in GROUPS.items():
        leaf = name.removeprefix(f"{group}_")
        if leaf != name and leaf in kind.__struct_fields__:
            return group, leaf
    found = [group for group, kind in GROUPS.items() if name in kind.__struct_fields__]
    return (found[0], name) if len(found) == 1 else None
