"""The one YAML schema of a deployment: what the launcher, every process and the chart read.

Unknown keys and values out of range are errors at start, never silent defaults.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from antiphon.deployment.auth_config import AuthConfig, JwtConfig, TrustedProxyConfig
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
from antiphon.deployment.discovery import DiscoveryConfig as DiscoveryConfig
from antiphon.deployment.tls_config import MutualTlsConfig, TlsConfig
from antiphon.deployment.yaml_file import read_yaml
from antiphon.errors import InvalidArgument
from antiphon.values.history import MAX_HISTORY_BYTES

DeliveryName = Literal["stream", "whole"]
TransportName = Literal["auto", "shared_memory", "nccl", "grpc"]


LINK_SESSION_BYTES = 512 << 20
LINK_BYTES = 1 << 30
MAX_IMAGE_BYTES = 32 << 20


class StageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One stage: where it listens, what it runs on, what it allows."""

    # gRPC targets of the stage's replicas, one for each; the launcher fills them in.
    addresses: tuple[str, ...] = ()
    # `${NAME}` in any address of a process, such as `${POD_IP}:50051`, is that variable of its
    # environment. `localhost` listens on both loopback addresses, `[::]` on all addresses of IPv4
    # and IPv6; a family that the host lacks is left out.
    listen: str = "localhost:0"
    # host:port by which other processes reach this one, where it listens on every address of its
    # host ([::]); it tells them on its links. Empty: where it listens.
    advertise: str = ""
    # How many replicas `up` starts, where no addresses are given.
    replicas: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    # host:port at which HTTP GET /metrics answers; empty: nowhere.
    metrics_listen: str = ""
    # host:port at which gRPC's health service answers an orchestrator's probes, unencrypted, by
    # service name: `ready`, whether the stage takes sessions, and `alive`, whether waiting may
    # help. It answers from the start of the process to its end; empty: nowhere.
    health_listen: str = ""
    # `auto` takes the fastest that this process can run; see each stage.
    engine: str = "auto"
    # Arguments of the engine, by its own names: for `vllm` those of its AsyncEngineArgs.
    engine_args: dict[str, Any] = {}
    device: str = "cpu"
    # What the stage computes in. Unset: float32, or bfloat16 for what decodes one token or frame
    # after the other on a GPU, where float32 takes several times as long.
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    # torch intra-op threads; 0 leaves torch's choice.
    threads: Annotated[int, msgspec.Meta(ge=0)] = 1
    # How far the engine's thread stands back for others that want its core, as `nice` has it
    # (Linux). Unset: not at all; `up` sets it on a CPU, more the farther from the listener.
    engine_nice: Annotated[int, msgspec.Meta(ge=0, le=19)] | None = None
    # Segments open at a time.
    slots: Positive = 16
    # Most positions of a segment; 0 takes the checkpoint's, `fits` what the GPU's free memory holds
    # of it for all slots after the weights. Unset: `fits` on a GPU, the checkpoint's on a CPU.
    # Stages that share a GPU need numbers: one that starts first leaves no room.
    context_limit: Annotated[int, msgspec.Meta(ge=0)] | Literal["fits"] | None = None
    # Most prompt rows in a step of a torch engine. Unset: 256 on a CPU, 2048 or 4096 on a GPU.
    prefill_rows: Annotated[int, msgspec.Meta(ge=128, le=65_536)] | None = None
    # Longest wait for an awaited input, and for a chunk's session to be opened.
    stall_timeout_s: Seconds = 30.0
    hold_timeout_s: Seconds = 10.0
    # Where input comes while it is recorded: the longest pause between two pieces of it.
    live_input_timeout_s: Seconds = 120.0
    # Sessions that are registered at a time, whether they have a segment open or not, and how
    # long one may be without: between the turns of a conversation, or done while others still
    # speak. So it is `gateway.request_timeout_s` where that is longer.
    max_sessions: Positive = 1024
    idle_session_timeout_s: Seconds = 600.0
    # Bounds on chunks held for sessions that are not open yet, and on output
    # that waits for a slow reader, per session.
    hold_bytes: Bytes = 64 << 20
    outbox_bytes: Bytes = 64 << 20
    # Most input of all sessions that waits while the engine is in a step; what would exceed
    # it ends its session with RESOURCE_EXHAUSTED.
    mailbox_bytes: Bytes = 256 << 20
    # Longest step of the engine, without its thread's waits for a core. In a longer one the stage
    # serves no more, and its sessions end, until the engine comes back. Unset: 5 s, or 30 s on a
    # CPU, where a step takes in a whole recording. Steps that wait for vLLM are not watched.
    step_timeout_s: Seconds | None = None
    # An engine that does not come back from such a step for so long is not waited for: the stage
    # says on its health port that it is not alive, to be started again.
    hung_timeout_s: Seconds = 60.0
    # An engine of which two steps in a row have raised takes no sessions for so long, unless it
    # makes a good step; then it is tried again. After a third one the process ends.
    failing_pause_s: Seconds = 5.0
    # How payloads travel on this stage's links: the best that both ends can prove,
    # or one of them; then it is an error when that one cannot be had.
    transport: TransportName = "auto"
    # Most shared memory that the payloads under way on one link take; a power of two.
    slab_bytes: Annotated[int, msgspec.Meta(ge=1 << 17)] = 256 << 20
    # Most output of one session, and of all together, that waits on one link to a stage: of
    # all, only sessions with more than an equal share are refused. The hidden rows of a long
    # prompt come at once: the first must hold those of the longest one.
    link_session_bytes: Bytes = LINK_SESSION_BYTES
    link_bytes: Bytes = LINK_BYTES
    # Most hidden rows, in vLLM's process, that wait for this stage to take them. A sixteenth of it
    # is taken out of paged memory in one step; while the stage is behind rows stay there, and
    # where they cannot, their sessions end with RESOURCE_EXHAUSTED.
    hidden_row_bytes: Bytes = 256 << 20
    # Mel features of recordings that the stage which hears keeps, of those that came last, so that
    # a later turn of a conversation need not bring them again; about 50 KB for a second.
    kept_recording_bytes: Bytes = 256 << 20
    # On a GPU, whether outputs are copied to the host, and inputs to the GPU, beside the
    # engine's work; and the pinned memory that each of the two may take, a power of two.
    async_to_host: bool = True
    async_to_device: bool = True
    staging_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 64 << 20
    # On a GPU, whether the torch engines replay what they can as CUDA graphs, captured at
    # start. Off until that has been run on one.
    graphs: bool = False
    # Whether the torch engines that decode one position after the other fuse the operations of
    # these graphs into fewer kernels. They are compiled at start, which takes a C compiler and
    # triton. Needs `graphs` on a GPU; a CPU runs them slowly, to compare results. Other engines
    # refuse it. Off until it has been run on a GPU.
    fused: bool = False
    # Whether an engine that can do so launches a step before it reads the last one's output. On
    # a GPU the device then need not wait for the host, which helps only when launching takes
    # less time than the step: with `graphs`. Off until it has been run on one, and for good on a
    # CPU, where a step is complete when it is launched and each end of output wastes a step.
    launch_ahead: bool = False
    # Where audio is made in blocks that depend on later ones too, as by a diffusion decoder: how
    # many blocks a stream waits for beyond those that it hands on. More of them bring it nearer
    # to what `whole` delivery makes of all blocks at once, cost more, and come later.
    held_blocks: Annotated[int, msgspec.Meta(ge=0, le=64)] = 3
    # Where a diffusion decoder's blocks see all earlier ones: what streams keep of computed blocks,
    # of all sessions together. A stream that finds no room computes blocks again, to the same
    # result, and its later chunks are longer.
    flow_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 2 << 30
    # Where a family decodes streamed codes in windows: how many codes before and after those that
    # it hands on it decodes with them. More of them bring a stream nearer to `whole` delivery. All
    # cost computing, and audio waits for the later ones.
    left_context_codes: Annotated[int, msgspec.Meta(ge=0, le=1500)] = 250
    right_context_codes: Annotated[int, msgspec.Meta(ge=0, le=1500)] = 40
    # Where a family's audio tokenizer has a directory of its own: that directory. Empty: the one of
    # the released name, in or beside the model's.
    audio_tokenizer_dir: str = ""
    # Told to stop, a stage refuses new sessions at once and lets running ones finish for so
    # long; what is left then ends with an error. Whoever stops the process waits longer.
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    # Where its part of the requests goes that the gateway traces (OTLP over gRPC, such as
    # http://collector:4317); empty: nowhere.
    trace_endpoint: TraceEndpoint = ""
    # How long the sessions of a broken link wait for it to heal.
    resume_window_s: Seconds = 5.0


class GatewayConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The gateway's two endpoints and its bounds."""

    # As a stage's `listen`: localhost and [::] are of both families.
    http_listen: str = "localhost:8000"
    grpc_listen: str = "localhost:0"
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
    # Where the series are, at /metrics; empty: at `http_listen`.
    metrics_listen: str = ""
    # Requests in flight. More wait, as those do for which a stage has no slot: so many, which hold
    # so many bytes of what they sent, each for so long. What is beyond that, or could not begin in
    # time by what calls take, is refused at once with a 429. Keys take turns by their priority;
    # of one key audio goes before text, and the turn of a conversation before both. With
    # `max_waiting` 0 nothing waits.
    max_calls: Positive = 64
    max_waiting: Annotated[int, msgspec.Meta(ge=0, le=65_536)] = 256
    max_waiting_bytes: Bytes = 256 << 20
    queue_timeout_s: Seconds = 60.0
    # File with the API keys that may ask, and what each may take (`python -m antiphon_gateway keys
    # new NAME` makes one); empty: everybody may. It is read again when it has changed, which is
    # looked at with a request, at most so often.
    keys_file: str = ""
    # What else may name a caller: a trusted proxy's header, or a JWT. With either of them, or with
    # `keys_file`, callers that nothing names are refused.
    auth: AuthConfig = AuthConfig()
    keys_reload_s: Seconds = 1.0
    # Conversations, over WebSocket and gRPC together; each takes a call and slots while it is
    # answered. How long one over gRPC may last.
    max_conversations: Positive = 256
    max_conversation_s: Seconds = 3600.0
    # A turn that is spoken for longer than this is heard by the stages while it is spoken, which
    # takes a slot of those that can do something with it; what is left to do at its end does then
    # not grow with it. No queue and no key counts such slots, so a turn gives them up when nothing
    # more comes of it, and nobody has asked to have it answered, for `listen_idle_s`.
    listen_after_s: Seconds = 4.0
    listen_idle_s: Seconds = 5.0
    # What all of them may hold together: the recordings and texts of their items, and audio that is
    # none yet; one may hold `max_body_bytes`. An item that a client retrieves comes without its
    # recordings where it is above `max_retrieved_bytes`.
    max_conversation_bytes: Bytes = 2 << 30
    max_retrieved_bytes: Bytes = 4 << 20
    # A client that asks for it is told what another gateway needs to go on with its conversation:
    # at most so many bytes, texts first, then the latest recordings that fit. That holds for so
    # long, where a gateway has the same key: the file has one in each line, of at least 32
    # characters; the first seals, all are taken. It is read again as `keys_file` is. Without a file
    # each gateway has a key of its own, and goes on with nobody else's conversations.
    resume_bytes: Bytes = 256 << 10
    resume_within_s: Seconds = 3600.0
    resume_key_file: str = ""
    # Whole request, and longest silence of all stages within one.
    request_timeout_s: Seconds = 600.0
    idle_timeout_s: Seconds = 60.0
    # A body's bytes, its JSON values (commas and brackets are counted, also in texts) or a gRPC
    # message's fields, how long a body may take to come, and all bodies, fetched files and what is
    # decoded of them together, of requests that do not wait for slots yet.
    max_body_bytes: Bytes = 64 << 20
    max_body_values: Positive = 200_000
    body_timeout_s: Seconds = 60.0
    max_upload_bytes: Bytes = 256 << 20
    # Of a multipart form: its parts, and the bytes of each that is no file.
    max_form_parts: Positive = 64
    max_form_field_bytes: Bytes = 64 << 10
    # Connections at the HTTP endpoint, fewer than the process may open files; a new one takes the
    # place of the one that has been idle for longest. How long a connection may be idle, or
    # take to send a request line with its headers, and how large these may be.
    max_connections: Positive = 512
    # Connections at the gRPC endpoint, of all clients and of one address (IPv6: one /64 network).
    # When all are in use, the longest silent connection of the address with most of them gives way
    # to an address with fewer. The process needs one descriptor for each HTTP connection and three
    # for each gRPC connection; if it may open fewer, both endpoints have fewer connections.
    max_grpc_connections: Positive = 512
    max_grpc_connections_per_address: Positive = 384
    head_timeout_s: Seconds = 10.0
    max_head_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 32 << 10
    # How long a client may take nothing of its answer until its connection is cut, and all
    # whole answers together that wait to be taken. A stream waits with its stages.
    send_timeout_s: Seconds = 30.0
    max_unread_bytes: Bytes = 256 << 20
    # A stream of server-sent events begins when its request is queued, and brings a comment when it
    # has brought nothing for so long. Less than the timeouts of proxies on the way.
    keepalive_s: Seconds = 15.0
    # What a conversation may have: parts of its messages, recordings among them, and seconds of
    # one recording and of all; the model's own limit counts too. A second is 64 kB for the model,
    # however small the file is.
    max_parts: Positive = 4096
    max_recordings: Positive = 64
    max_recording_s: Seconds = 600.0
    max_audio_s: Seconds = 900.0
    # Child processes that decode recordings at a time: so many for files that take up to 0.25 s
    # of CPU time, as many for those that take up to 2 s, and as many for longer ones. WAV is
    # decoded in the gateway itself.
    decoder_processes: Annotated[int, msgspec.Meta(ge=1, le=64)] = 4
    # Whether a chat's recordings are heard each by itself, as those of a realtime conversation
    # are, and not padded to the longest, as the reference's plain call does: then a longer one
    # that comes later changes nothing of them, and what was computed of them is reused.
    recordings_alone: bool = False
    # Whether the recordings, images and videos of a conversation are fetched by the http and
    # https URLs that it names; otherwise they come in data URLs. How long one may take with the
    # redirects on its way, and the bytes of all of a request. Only public addresses are asked,
    # and those of these networks (such as 10.1.2.0/24).
    fetch_urls: bool = False
    fetch_timeout_s: Seconds = 10.0
    max_fetch_bytes: Bytes = 32 << 20
    fetch_networks: tuple[str, ...] = ()
    # The texts and recordings of a request's options together, as they are sent. Each option has
    # bounds of its own, which its stage tells, and its recording counts above.
    max_option_bytes: Bytes = 16 << 20
    # What the model is asked with a recording of which the text is wanted; the language, and what
    # else the client tells of it, follow.
    transcribe_instruction: Instruction = "Transcribe the audio into text."
    # Other names for the model, and for the checkpoint's voices, by alias. With `openai_names` the
    # names of OpenAI's models that hear or speak, and of those that voice frameworks chat with by
    # default, are aliases of the model; those of its voices (alloy, ash, ...) are aliases of the
    # checkpoint's voices, in turn.
    model_aliases: tuple[Name, ...] = ()
    voice_aliases: dict[Name, Name] = {}
    openai_names: bool = True
    # Whether a field of a request that neither OpenAI nor vLLM defines is ignored and named in the
    # response header `x-antiphon-ignored`, or the request is refused.
    unknown_fields: Literal["ignore", "reject"] = "ignore"
    # Functions that a request may offer to the model, and the bytes of one with its schema.
    max_tools: Positive = 128
    max_tool_bytes: Bytes = 64 << 10
    # Answers that one chat may ask for (`n`); each takes a call of its own.
    max_choices: Positive = 8
    # How long a chat may refer to what it was answered in speech by the id of the audio, and the
    # transcripts that are kept for that together; an answer beyond that expires at once.
    spoken_keep_s: Seconds = 3600.0
    max_spoken_bytes: Annotated[int, msgspec.Meta(ge=0)] = 16 << 20
    # Threads that encode the audio of all answers at the HTTP endpoints. A second of opus, the
    # dearest, takes about 20 ms of one.
    encoder_threads: Annotated[int, msgspec.Meta(ge=1, le=64)] = 2
    # The files of all images of one answer together.
    max_image_bytes: Bytes = MAX_IMAGE_BYTES
    # How far the audio that stages make may run ahead of what the client has taken,
    # and one stage's output ahead of the next stage; in positions where neither the pipeline
    # nor the next stage tells how many a second has.
    max_ahead_seconds: Ahead = 30.0
    max_stage_ahead_seconds: Ahead = 4.0
    max_stage_ahead_positions: Annotated[int, msgspec.Meta(ge=1, le=1 << 32)] = 256
    # How often a stage that is down is tried again.
    reconnect_s: Seconds = 1.0
    # How often a stage is probed, and how long it may neither answer nor send anything else while
    # the gateway runs: after one such silence it gets no new requests, after two its calls end.
    probe_interval_s: Seconds = 0.5
    probe_timeout_s: Seconds = 1.5
    # A replica on which so many sessions have failed in a row gets none for a while, twice as long
    # each time: then one, and more if that is answered. Half of a stage's are never left out.
    eject_failures: Positive = 3
    eject_s: Seconds = 2.0
    max_eject_s: Seconds = 60.0
    # An answer whose stage is lost is continued on other replicas, so many times at most (0: it
    # fails); it waits so long for a slot of theirs, or, without others, for the lost one. So many
    # answers of this gateway a minute; and so many bytes of requests are kept for that while they
    # are answered: what does not fit fails when a stage is lost.
    failovers: Annotated[int, msgspec.Meta(ge=0, le=16)] = 3
    failover_wait_s: Seconds = 5.0
    failover_return_s: Seconds = 1.0
    failovers_per_minute: Positive = 1024
    max_kept_bytes: Bytes = 256 << 20
    # Stages go on from what a client has of an answer (400 bytes for a second of speech) up to so
    # many bytes of it, and make what is larger anew, as they do with 0.
    max_history_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_HISTORY_BYTES)] = 1 << 20
    # Where traces of requests go (OTLP over gRPC, such as http://collector:4317), with what the
    # stages do if they name one, too; empty: nowhere, and nothing is traced. This share of the
    # requests is traced; and whether a client's `traceparent` decides it for that client's own.
    trace_endpoint: TraceEndpoint = ""
    trace_ratio: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.01
    trace_clients: bool = False
    # host:port (gRPC, in the clear) at which KEDA asks how many slots of each stage are wanted, and
    # other gateways what is wanted here; empty: nowhere. How many calls it takes at a time.
    scaler_listen: str = ""
    scaler_max_calls: Positive = 1024
    # The same of all gateways, where no discovery finds them; this one may be among them. What one
    # wants that says nothing for so long is not counted.
    scaler_peers: tuple[str, ...] = ()
    scaler_silence_s: Seconds = 3.0
    # The share of its slots that a replica should have in use, and for how long requests that were
    # refused for want of a slot count as wanting some.
    scaler_target: Annotated[float, msgspec.Meta(gt=0, le=1)] = 0.7
    scaler_refused_s: Seconds = 30.0
    # Told to stop, the gateway refuses new requests at once and lets running ones finish for
    # so long; what is left then ends with an error. A conversation ends after the answer that is
    # being made. Whoever stops the process waits longer.
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0

    def __post_init__(self) -> None:
        """Raise `InvalidArgument` for a setting that no type can check."""
        for origin in self.cors_origins:
            check_origin(origin)

    @property
    def authenticates(self) -> bool:
        """Whether callers must be named by a key, a proxy or a token."""
        return bool(self.keys_file or self.auth.trusted_proxy or self.auth.jwt)


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, its stages by role, and the gateway.

    `model` is the checkpoint directory, `model_name` what clients ask for (empty:
    the directory's name), `pipeline` a name or empty (found from the checkpoint).
    """

    model: str = ""
    model_name: str = ""
    pipeline: str = ""
    stages: dict[str, StageConfig] = {}
    gateway: GatewayConfig = GatewayConfig()
    # Encryption and proof between the services; without it they are for networks that nobody else
    # reads or writes. Ports for probes and metrics have none.
    mutual_tls: MutualTlsConfig | None = None
    # Overrides of the pipeline's delivery, by edge.
    delivery: dict[str, DeliveryName] = {}

    def stage(self, role: str) -> StageConfig:
        """The stage's configuration; the defaults when the file has none."""
        return self.stages.get(role, StageConfig())


def load_deployment(path: Path) -> Deployment:
    """Read and check a deployment file. Raises `InvalidArgument` naming the key."""
    return read_yaml(path, deployment_of, name=str(path))


def deployment_of(content: object, *, strict: bool = True) -> Deployment:
    """Mappings as a deployment; unless `strict`, text becomes a number where one is wanted.

    Raises `InvalidArgument` that names the key, and the one that was probably meant.
    """
    if isinstance(content, dict):
        _check_keys(content, Deployment, "")
        gateway = content.get("gateway")
        _check_keys(gateway, GatewayConfig, "gateway.")
        if isinstance(gateway, dict):
            _check_keys(gateway.get("discovery"), DiscoveryConfig, "gateway.discovery.")
            auth = gateway.get("auth")
            _check_keys(auth, AuthConfig, "gateway.auth.")
            if isinstance(auth, dict):
                for name, kind in (("trusted_proxy", TrustedProxyConfig), ("jwt", JwtConfig)):
                    _check_keys(auth.get(name), kind, f"gateway.auth.{name}.")
        _check_keys(content.get("mutual_tls"), MutualTlsConfig, "mutual_tls.")
        stages = content.get("stages")
        for role, stage in stages.items() if isinstance(stages, dict) else ():
            _check_keys(stage, StageConfig, f"stages.{role}.")
            _converted(stage, StageConfig, f"stages.{role}", strict=strict)
    return _converted(content, Deployment, "", strict=strict)


def check_roles(deployment: Deployment, pipeline: str, roles: Sequence[str]) -> None:
    """Raise `InvalidArgument` for a stage that the pipeline does not have."""
    for role in deployment.stages:
        if role not in roles:
            raise InvalidArgument(
                f"stages: {pipeline} has no {role}; it has {', '.join(roles)}"
                f"{_probably(role, roles)}",
                field=f"stages.{role}",
            )


def _check_keys(content: object, kind: type[msgspec.Struct], where: str) -> None:
    """Raise `InvalidArgument` for a key of the content that the struct does not have."""
    known = kind.__struct_fields__
    for key in content if isinstance(content, dict) else ():
        if key not in known:
            meant = _probably(key, known) or f"; there are {', '.join(known)}"
            raise InvalidArgument(
                f"{where}{key}: there is no such setting{meant}", field=f"{where}{key}"
            )


def _probably(name: object, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(str(name), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


Struct = TypeVar("Struct", bound=msgspec.Struct)


def _converted(content: object, kind: type[Struct], where: str, *, strict: bool) -> Struct:
    try:
        return msgspec.convert(content, kind, strict=strict)
    except msgspec.ValidationError as error:
        # msgspec ends its sentence with the path within the value: " - at `$.slots`".
        fault, _, path = str(error).partition(" - at `$")
        field = f"{where}{path.rstrip('`')}".lstrip(".")
        raise InvalidArgument(f"{field}: {fault}" if field else fault, field=field) from error


def dump_deployment(deployment: Deployment) -> bytes:
    """The deployment as YAML."""
    return msgspec.yaml.encode(deployment)
