"""The identity of a stage process, and its response to `Describe`."""

from __future__ import annotations

import socket
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from antiphon.pipelines.graph import Edge, Pipeline
from antiphon.runtime.engine import StageFacts
from antiphon.runtime.server.load_watch import LoadCounts
from antiphon.transport.settings import LinkState
from antiphon.v1 import stage_pb2
from antiphon.values.sampling import MAX_STOP_BYTES, MAX_STOPS
from antiphon.version import VERSION
from antiphon.wire.convert import delivery_to_proto
from antiphon.wire.options import option_to_proto

MAX_COUNT = (1 << 64) - 1
"""The maximum value of a counter in a message."""

_HOST_BOOT = Path("/proc/sys/kernel/random/boot_id")


def host_id() -> str:
    """Return an ID that identifies this host and its current boot. Processes with the same ID can
    share memory, provided that shared memory is enabled.
    """
    boot = _HOST_BOOT.read_text().strip() if _HOST_BOOT.exists() else ""
    return f"{socket.gethostname()}/{boot}"


@dataclass(frozen=True, slots=True)
class StageIdentity:
    """The part of the `Describe` response that never changes. `pipeline` contains the options of
    the loaded model.
    """

    pipeline: Pipeline
    role: str
    facts: StageFacts
    slots: int
    model_name: str = ""
    # The transports that this process can use on a link, with the preferred one first.
    transports: tuple[str, ...] = ()
    resume_window_s: float = 0.0
    host_id: str = field(default_factory=host_id)
    boot_id: str = field(default_factory=lambda: uuid.uuid4().hex)


def describe(
    identity: StageIdentity,
    *,
    open_sessions: int,
    open_segments: int,
    held_segments: int,
    output_positions: Mapping[str, int],
    links: Iterable[LinkState] = (),
) -> stage_pb2.DescribeResponse:
    """Build the response to `Describe`."""
    facts, pipeline, role = identity.facts, identity.pipeline, identity.role
    return stage_pb2.DescribeResponse(
        model=identity.model_name or facts.model,
        checkpoint_fingerprint=facts.checkpoint_fingerprint,
        pipeline=pipeline.name,
        role=role,
        inputs=_edges(pipeline.inputs(role)),
        outputs=_edges(pipeline.outputs(role)),
        voices=facts.voices,
        sample_rate_hz=facts.sample_rate_hz,
        samples_per_frame=facts.samples_per_frame,
        context_limit=facts.context_limit,
        input_kinds=facts.input_kinds,
        input_sample_rate_hz=facts.input_sample_rate_hz,
        slots=identity.slots,
        engine=facts.engine,
        transports=identity.transports,
        host_id=identity.host_id,
        boot_id=identity.boot_id,
        runs_lines=True,
        version=VERSION,
        code_groups=facts.code_groups,
        code_entries=facts.code_entries,
        frame_dtype=facts.frame_dtype if facts.code_groups else "",
        samples=pipeline.stage(role).samples,
        reads_aloud=pipeline.stage(role).reads_aloud,
        options=[option_to_proto(each) for each in pipeline.stage(role).options],
        pipeline_edges=[
            stage_pb2.PipelineEdge(
                name=edge.name,
                producer=edge.producer,
                consumer=consumer,
                governed=edge.governed,
                rate_hz=edge.rate_hz,
            )
            for edge in pipeline.edges
            for consumer in edge.consumers
        ],
        max_stop_bytes=MAX_STOP_BYTES,
        max_stops=MAX_STOPS,
        max_input_audio_s=facts.max_input_audio_s,
        max_input_images=facts.max_input_images,
        max_input_videos=facts.max_input_videos,
        max_input_text_bytes=facts.max_input_text_bytes,
        constrains_text=facts.constrains_text,
        keeps_recordings=facts.keeps_recordings,
        goes_on_from=facts.goes_on_from,
        open_sessions=open_sessions,
        open_segments=open_segments,
        held_segments=held_segments,
        output_positions=output_positions,
        links=[_link(link) for link in links],
    )


def load_to_proto(load: LoadCounts, identity: StageIdentity) -> stage_pb2.StageLoad:
    """Build a `WatchLoad` message."""
    return stage_pb2.StageLoad(
        boot_id=identity.boot_id,
        draining=load.draining,
        slots=identity.slots,
        open_sessions=load.open_sessions,
        open_segments=load.open_segments,
        held_segments=load.held_segments,
        refused=load.refused,
    )


def _link(link: LinkState) -> stage_pb2.LinkState:
    return stage_pb2.LinkState(
        peer_role=link.peer_role,
        peer_address=link.peer_address,
        peer_name=link.peer_name,
        outgoing=link.outgoing,
        connected=link.connected,
        transport=link.transport,
        refused=link.refused,
        counts={name: min(count, MAX_COUNT) for name, count in link.counts.items()},
    )


def _edges(edges: Iterable[Edge]) -> list[stage_pb2.EdgeDescription]:
    return [
        stage_pb2.EdgeDescription(
            name=edge.name,
            tensors=[
                stage_pb2.TensorDescription(
                    name=tensor.name,
                    dtype=tensor.dtype,
                    shape=tensor.shape,
                    optional=tensor.optional,
                )
                for tensor in edge.tensors
            ],
            default_delivery=delivery_to_proto(edge.delivery),
        )
        for edge in edges
    ]
