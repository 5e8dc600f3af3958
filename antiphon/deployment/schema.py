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
from antiphon.deployment.bounds import Bytes, Positive, Seconds, TraceEndpoint
from antiphon.deployment.discovery import DiscoveryConfig as DiscoveryConfig
from antiphon.deployment.gateway_config import GROUPS, WITHDRAWN, grouped_path
from antiphon.deployment.gateway_config import GatewayConfig as GatewayConfig
from antiphon.deployment.tls_config import MutualTlsConfig, TlsConfig
from antiphon.deployment.yaml_file import read_yaml
from antiphon.errors import InvalidArgument

DeliveryName = Literal["stream", "whole"]
TransportName = Literal["auto", "shared_memory", "nccl", "grpc"]


LINK_SESSION_BYTES = 512 << 20
LINK_BYTES = 1 << 30


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
    # Where a family's audio tokenizer has a directory of its own: that directory, or for
    # `antiphon serve` its id on the Hugging Face hub. Empty: the one of the released name, in or
    # beside the model's.
    audio_tokenizer_dir: str = ""
    # Where a family's voice is no part of its checkpoints: the directory with the voice's files.
    # Empty: the folder that the family names, in the checkpoint's directory.
    voice_dir: str = ""
    # Told to stop, a stage refuses new sessions at once and lets running ones finish for so
    # long; what is left then ends with an error. Whoever stops the process waits longer.
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    # Where its part of the requests goes that the gateway traces (OTLP over gRPC, such as
    # http://collector:4317); empty: nowhere.
    trace_endpoint: TraceEndpoint = ""
    # How long the sessions of a broken link wait for it to heal.
    resume_window_s: Seconds = 5.0


class Deployment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, its stages by role, and the gateway.

    `model` is the checkpoint directory, or for `antiphon serve` an id of the Hugging Face hub,
    `org/name` or `org/name@revision`. `model_name` is what clients ask for (empty: the directory's
    name, or `org/name`), `pipeline` a name or empty (found from the checkpoint).
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
        if isinstance(gateway, dict):
            _check_gateway(gateway)
            for group, kind in GROUPS.items():
                _check_keys(gateway.get(group), kind, f"gateway.{group}.")
            _check_keys(gateway.get("tls"), TlsConfig, "gateway.tls.")
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


def _check_gateway(gateway: dict[object, object]) -> None:
    """Raise `InvalidArgument` for a key that the gateway does not have.

    The error names the group of a setting from before these were grouped.
    """
    for name in gateway:
        if name in GatewayConfig.__struct_fields__:
            continue
        if name in WITHDRAWN:
            meant = f"is no longer a setting, but {WITHDRAWN[name]}; remove it"
        elif path := grouped_path(str(name)):
            meant = f"is now gateway.{'.'.join(path)}"
        else:
            leaves = {
                leaf: f"gateway.{group}.{leaf}"
                for group, kind in GROUPS.items()
                for leaf in kind.__struct_fields__
            }
            leaves |= {name: f"gateway.{name}" for name in GatewayConfig.__struct_fields__}
            close = difflib.get_close_matches(str(name), leaves, n=1)
            meant = "there is no such setting" + (
                f"; did you mean {leaves[close[0]]}?"
                if close
                else f"; there are {', '.join(GatewayConfig.__struct_fields__)}"
            )
        raise InvalidArgument(f"gateway.{name}: {meant}", field=f"gateway.{name}")


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
