"""The settings of a stage, arranged in groups. Each group is a class whose docstring describes its
purpose.

The settings that are changed in most deployments don't belong to a group.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from antiphon.deployment.bounds import Bytes, Positive, Seconds, TraceEndpoint
from antiphon.deployment.setting_groups import SettingGroups

TransportName = Literal["auto", "shared_memory", "nccl", "grpc"]

LINK_SESSION_BYTES = 512 << 20
LINK_BYTES = 1 << 30


class TorchConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the torch engines compute their steps."""

    # The maximum number of prompt rows in a step of a torch engine. The default is 256 on a CPU,
    # and 2048 or 4096 on a GPU.
    prefill_rows: Annotated[int, msgspec.Meta(ge=128, le=65_536)] | None = None
    # Whether torch engines use CUDA graphs, which are captured at startup, wherever possible. This
    # is disabled by default because it has not been tested on a GPU yet.
    graphs: bool = False
    # Whether torch engines that decode one position at a time fuse the operations in these graphs
    # into fewer kernels. The kernels are compiled at startup, which requires a C compiler and
    # triton. On a GPU, `graphs` must be set as well. On a CPU, the kernels are slow and are only
    # useful for comparing results. Other engines reject this setting. This is disabled by default
    # because it has not been tested on a GPU yet.
    fused: bool = False
    # Whether an engine that supports it launches a step before it reads the output of the previous
    # one. On a GPU, the device then does not wait for the host. This helps only if launching a step
    # takes less time than the step itself, so use it with `graphs`. It is disabled by default
    # because it has not been tested on a GPU yet. It is always disabled on a CPU, where a step is
    # complete when it has been launched and each end of output would waste a step.
    launch_ahead: bool = False


class CopiesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for copying inputs and outputs between the host and a GPU."""

    # Whether outputs are copied from a GPU to the host concurrently with the engine's work.
    async_to_host: bool = True
    # Whether inputs are copied from the host to a GPU concurrently with the engine's work.
    async_to_device: bool = True
    # The maximum amount of pinned memory for each of these two directions, in bytes. It must be a
    # power of two.
    staging_bytes: Annotated[int, msgspec.Meta(ge=1 << 16)] = 64 << 20


class MemoryConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits for memory that an engine uses in addition to its weights and its KV cache."""

    # The maximum size of the mel features of recent recordings that a stage with audio input keeps,
    # in bytes. With them, a later turn in a conversation does not have to send the recordings
    # again. One second takes about 50 KB.
    kept_recording_bytes: Bytes = 256 << 20
    # The maximum size of hidden rows that wait in vLLM's process until this stage reads them, in
    # bytes. One step copies at most a sixteenth of this amount out of paged memory. If the stage is
    # slow, the rows remain there. If they cannot, their sessions end with RESOURCE_EXHAUSTED.
    hidden_row_bytes: Bytes = 256 << 20
    # The maximum total size of computed blocks that all sessions keep, in bytes. This applies to
    # diffusion decoders whose blocks depend on all earlier blocks. If there is no space for a
    # stream, its blocks are computed again with the same result, and its later chunks are longer.
    flow_cache_bytes: Annotated[int, msgspec.Meta(ge=0)] = 2 << 30


class DecodingConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How stages that generate audio decode a stream before it is complete."""

    # The number of additional blocks that a stream waits for before it sends a block. This applies
    # to stages that generate audio in blocks that depend on later blocks, such as a diffusion
    # decoder. With a higher value, the audio is closer to that of `whole` delivery, which generates
    # all blocks at once, but the cost and the delay are higher.
    held_blocks: Annotated[int, msgspec.Meta(ge=0, le=64)] = 3
    # The number of codes before the current ones that are decoded together with them. This applies
    # to families that decode streamed codes in windows. With a higher value, the audio is closer to
    # that of `whole` delivery, but the cost is higher.
    left_context_codes: Annotated[int, msgspec.Meta(ge=0, le=1500)] = 250
    # The number of codes after the current ones that are decoded together with them. A higher value
    # has the same effects, and the audio has to wait for these codes.
    right_context_codes: Annotated[int, msgspec.Meta(ge=0, le=1500)] = 40


class FilesConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Files that the checkpoint itself does not contain."""

    # The directory of the audio tokenizer, for families that have a separate one. For `antiphon
    # serve`, it may be an ID on the Hugging Face hub. If it is empty, the stage looks for a
    # directory with the released name inside the model's directory and next to it.
    audio_tokenizer_dir: str = ""
    # The directory of the image tokenizer, found in the same way.
    image_tokenizer_dir: str = ""
    # The directory that contains the voice's files, for families whose checkpoints do not include
    # the voice. If it is empty, the folder that the family specifies is used. It is inside the
    # checkpoint's directory.
    voice_dir: str = ""


class SessionsConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Limits for a stage's sessions and for the chunks that wait in the stage."""

    # The maximum number of sessions that are registered at the same time, whether or not they have
    # an open segment.
    max_sessions: Positive = 1024
    # The maximum time in seconds for which a session may be without a segment. This happens between
    # the turns of a conversation, and when this stage has finished while others have not. If
    # `gateway.limits.request_timeout_s` is longer, that value is used instead.
    idle_session_timeout_s: Seconds = 600.0
    # The maximum time in seconds for which a segment waits for input.
    stall_timeout_s: Seconds = 30.0
    # The maximum pause in seconds between two pieces of input that arrive while they are being
    # recorded.
    live_input_timeout_s: Seconds = 120.0
    # The maximum total size of chunks that are held for sessions that are not open yet, in bytes.
    hold_bytes: Bytes = 64 << 20
    # The maximum size of the output of one session that waits for a slow reader, in bytes.
    outbox_bytes: Bytes = 64 << 20
    # The maximum total size of the input that waits while the engine is in a step, in bytes. If
    # input would exceed this limit, its session ends with RESOURCE_EXHAUSTED.
    mailbox_bytes: Bytes = 256 << 20


class WatchdogConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for detecting an engine that does not return from a step."""

    # The maximum duration of an engine step in seconds, not counting the time during which its
    # thread waits for a core. If a step takes longer, the stage stops serving and its sessions end
    # until the engine responds again. The default is 5 s, or 30 s on a CPU, where a step may
    # process a whole recording. Steps that wait for vLLM are not monitored.
    step_timeout_s: Seconds | None = None
    # If an engine has not returned from such a step after this many seconds, the stage reports on
    # its health port that it is not alive, so that it is restarted.
    hung_timeout_s: Seconds = 60.0


class LinkConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings for the links between this stage and other stages."""

    # The transport for payloads on the links of this stage. `auto` selects the best transport that
    # works at both ends. It is an error to set any other transport if it is not available.
    transport: TransportName = "auto"
    # Whether chunks for stages on the same host go through a ring in shared memory instead of gRPC.
    # This has no effect unless both stages are on the same host and run on Linux.
    ring: bool = True
    # The maximum amount of shared memory for payloads in flight on one link, in bytes. It must be a
    # power of two.
    slab_bytes: Annotated[int, msgspec.Meta(ge=1 << 17)] = 256 << 20
    # The maximum size of the output of one session that waits on one link to a stage, in bytes. The
    # hidden rows of a long prompt are sent all at once, so this must be at least the size of the
    # rows of the longest prompt.
    session_bytes: Bytes = LINK_SESSION_BYTES
    # The maximum size of the output of all sessions that waits on one link to a stage, in bytes.
    # Beyond this limit, only sessions that use more than an equal share are refused.
    bytes: Bytes = LINK_BYTES
    # The time in seconds within which a broken link or a gateway's broken stream can be resumed.
    # Its sessions wait during this time.
    resume_window_s: Seconds = 5.0


class StageConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The settings of one stage: its addresses, its engine and device, and its limits."""

    # The gRPC addresses of the stage's replicas. The launcher fills them in.
    addresses: tuple[str, ...] = ()
    # The address on which the stage listens. In all addresses of a process, `${NAME}` is replaced
    # by an environment variable, as in `${POD_IP}:50051`. `localhost` stands for both loopback
    # addresses, and `[::]` stands for all IPv4 and IPv6 addresses. If the host does not support a
    # family, it is left out.
    listen: str = "localhost:0"
    # The host:port under which other processes reach this stage. It is sent over the links. It is
    # required if the stage listens on all addresses of its host ([::]). If it is empty, `listen` is
    # used.
    advertise: str = ""
    # The number of replicas that `up` starts if no addresses are set.
    replicas: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    # The host:port on which metrics are served at /metrics over HTTP. If it is empty, there is no
    # such endpoint.
    metrics_listen: str = ""
    # The host:port of gRPC's health service, which answers the probes of an orchestrator without
    # encryption. The service `ready` reports whether the stage accepts sessions. The service
    # `alive` reports whether the process can recover without a restart. The health service answers
    # from the start of the process until its end. If the address is empty, there is no such
    # endpoint.
    health_listen: str = ""
    # The engine. `auto` selects the fastest engine that this process can run. Each stage documents
    # its engines.
    engine: str = "auto"
    # Arguments for the engine. The engine defines their names. For `vllm`, they are the names of
    # its AsyncEngineArgs.
    engine_args: dict[str, Any] = {}
    # The torch device.
    device: str = "cpu"
    # The dtype in which the stage computes. By default, it is float32. On a GPU, stages that decode
    # one token or frame at a time use bfloat16 by default, because float32 takes several times as
    # long.
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    # The number of torch's intra-op threads. If it is 0, torch chooses the number.
    threads: Annotated[int, msgspec.Meta(ge=0)] = 1
    # The niceness of the engine's thread (Linux only). By default, it is not changed. On a CPU,
    # `up` sets it to a higher value the farther a stage is from the client.
    engine_nice: Annotated[int, msgspec.Meta(ge=0, le=19)] | None = None
    # The maximum number of segments that are open at the same time.
    slots: Positive = 16
    # The maximum number of positions in a segment. If it is 0, the limit of the checkpoint applies.
    # With `fits`, the limit is the number of positions for which the free memory of the GPU is
    # sufficient, for all slots, after the weights have been loaded. It never exceeds the limit of
    # the checkpoint. The default is `fits` on a GPU and the limit of the checkpoint on a CPU.
    # Stages that share a GPU must be given numbers. Otherwise the stage that starts first uses all
    # of the memory.
    context_limit: Annotated[int, msgspec.Meta(ge=0)] | Literal["fits"] | None = None
    # When the stage is stopped, it refuses new sessions immediately and lets running ones finish
    # within this many seconds. The remaining ones then end with an error. The process manager must
    # allow more time than this before it kills the process.
    drain_s: Annotated[float, msgspec.Meta(ge=0)] = 30.0
    # The endpoint to which the stage sends its spans of the requests that the gateway traces (OTLP
    # over gRPC, such as http://collector:4317). If it is empty, nothing is sent.
    trace_endpoint: TraceEndpoint = ""
    # The groups of settings.
    torch: TorchConfig = TorchConfig()
    copies: CopiesConfig = CopiesConfig()
    memory: MemoryConfig = MemoryConfig()
    decoding: DecodingConfig = DecodingConfig()
    files: FilesConfig = FilesConfig()
    sessions: SessionsConfig = SessionsConfig()
    watchdog: WatchdogConfig = WatchdogConfig()
    link: LinkConfig = LinkConfig()


STAGE_SETTINGS = SettingGroups(
    StageConfig,
    {
        "torch": TorchConfig,
        "copies": CopiesConfig,
        "memory": MemoryConfig,
        "decoding": DecodingConfig,
        "files": FilesConfig,
        "sessions": SessionsConfig,
        "watchdog": WatchdogConfig,
        "link": LinkConfig,
    },
    {"sessions.hold_timeout_s": "a constant", "watchdog.failing_pause_s": "a constant"},
)
"""The stage's settings, with their groups and the settings that no longer exist."""
