"""Determines which stages a session needs and where their output edges lead. This module performs
no I/O.

The result follows from the graph that the stages describe. An edge without a producer carries input
from the client, and an edge without a consumer leads to the client. A session needs all stages from
which a requested client edge can be reached.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from antiphon.deployment.gateway_config import PacingConfig
from antiphon.errors import FailedPrecondition, InvalidArgument, NotImplementedYet
from antiphon.pipelines.graph import CLIENT
from antiphon.v1 import session_pb2, stage_pb2
from antiphon_gateway.fleet.names import NO_OTHER_NAMES, Names
from antiphon_gateway.outputs import AUDIO, OUTPUTS

Edges = Sequence[stage_pb2.PipelineEdge]
USUAL_PACING = PacingConfig()


@dataclass(frozen=True, slots=True)
class Member:
    """A stage that participates in a session."""

    role: str
    address: str
    description: stage_pb2.DescribeResponse


@dataclass(frozen=True)
class Lineup:
    """The stages of a session, upstream first, and the graph that connects them.

    Sessions on the same replicas share a single object, so the properties are computed only once.
    `names` contains aliases for voices, and `pacing` limits how far output can run ahead of its
    consumer.
    """

    members: tuple[Member, ...]
    edges: tuple[stage_pb2.PipelineEdge, ...]
    outputs: frozenset[str]
    names: Names = NO_OTHER_NAMES
    pacing: PacingConfig = USUAL_PACING

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles of the stages, upstream first."""
        return tuple(member.role for member in self.members)

    @cached_property
    def input_edge(self) -> stage_pb2.PipelineEdge:
        """The edge that carries the client's input."""
        return next(edge for edge in self.edges if edge.producer == CLIENT)

    @cached_property
    def input_member(self) -> Member:
        """The stage that receives the client's input."""
        return self.member(self.input_edge.consumer)

    def member(self, role: str) -> Member:
        """Return the stage with the given role."""
        return self.members[self.roles.index(role)]

    def producer(self, output: str) -> Member:
        """Return the stage that produces an output for the client."""
        return self.member(self.makers[output])

    @cached_property
    def makers(self) -> dict[str, str]:
        """Maps each edge that leads to the client to the role that produces it. Edges that weren't
        requested are included.
        """
        return {
            edge.name: edge.producer
            for edge in self.edges
            if edge.consumer == CLIENT and edge.producer in self.roles
        }

    @cached_property
    def build(self) -> tuple[str, str]:
        """The pipeline and the checkpoint fingerprint, which are the same for all stages."""
        told = self.members[0].description
        return told.pipeline, told.checkpoint_fingerprint

    @cached_property
    def terms(self) -> tuple[tuple[object, ...], ...]:
        """The properties of the stages that affect how a request is prepared. If two line-ups have
        equal terms, they can use the same prepared request.
        """
        return tuple(map(_terms, self.members))

    @cached_property
    def sample_rate_hz(self) -> int:
        """The sample rate of the generated audio in Hz, or 0 if audio wasn't requested."""
        return self.producer(AUDIO).description.sample_rate_hz if AUDIO in self.outputs else 0

    def check_rate(self) -> None:
        """Raise `FailedPrecondition` if audio was requested, but the stage that generates it
        doesn't report a sample rate.
        """
        if AUDIO in self.outputs and not self.sample_rate_hz:
            role = self.makers[AUDIO]
            raise FailedPrecondition(
                f"{role} generates audio but has no sample_rate_hz; set it in its StageFacts",
                stage=role,
            )

    @cached_property
    def samples_per_frame(self) -> int:
        """The number of audio samples per codec frame. This is 0 if audio wasn't requested or has
        no frames.
        """
        return self.producer(AUDIO).description.samples_per_frame if AUDIO in self.outputs else 0

    @cached_property
    def voices(self) -> tuple[str, ...]:
        """The voices that are available to the session."""
        return next((tuple(m.description.voices) for m in self.members if m.description.voices), ())

    @cached_property
    def _voice_aliases(self) -> dict[str, str]:
        return self.names.voice_aliases(self.voices)

    def choose_voice(self, name: str) -> str:
        """Resolve the name or alias of a voice and return the voice's name in lower case. An empty
        name is returned unchanged, in which case the stages use their default voice.

        Raises `InvalidArgument` if there is no such voice.
        """
        voices = self.voices
        name = self._voice_aliases.get(name.lower(), name)
        if name and name.lower() not in voices:
            known = (
                f"use one of: {', '.join(voices)}" if voices else "this model has no named voices"
            )
            raise InvalidArgument(f"voice: unknown voice {name!r}; {known}", field="voice")
        return name.lower()

    @cached_property
    def routes(self) -> dict[str, tuple[session_pb2.Route, ...]]:
        """Maps each role to its output edges and the consumers of each edge in this session."""
        return {role: tuple(self._routes_of(role)) for role in self.roles}

    def _routes_of(self, role: str) -> Iterator[session_pb2.Route]:
        found: dict[str, list[session_pb2.Destination]] = {}
        for edge in self.edges:
            if edge.producer != role:
                continue
            if edge.consumer == CLIENT and edge.name in self.outputs:
                reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
                found.setdefault(edge.name, []).append(reply)
            elif edge.consumer in self.roles:
                found.setdefault(edge.name, []).append(_to_stage(self.member(edge.consumer)))
        for name, destinations in found.items():
            yield session_pb2.Route(edge=name, destinations=destinations)

    @cached_property
    def windows(self) -> dict[str, int]:
        """Maps each edge that is limited by credit to its window, in positions.

        For audio to the client, the window has a fixed duration. For an edge to a stage, it also
        has a fixed duration, which is converted to positions using the stage's codec frame rate or
        the edge's own rate. If neither is reported, the window is a fixed number of positions.
        Other output to the client isn't limited by credit.
        """
        without = {e.name for e in self.edges if e.consumer == CLIENT} & self.outputs - {AUDIO}
        found: dict[str, int] = {}
        for edge in self.edges:
            if not edge.governed or edge.producer not in self.roles or edge.name in without:
                continue
            if edge.consumer == CLIENT and edge.name in self.outputs:
                rate_hz: float = self.member(edge.producer).description.sample_rate_hz
                positions = self.pacing.max_ahead_seconds * rate_hz
            elif edge.consumer in self.roles:
                rate_hz = _frame_rate_hz(self.member(edge.consumer)) or edge.rate_hz
                positions = self.pacing.max_stage_ahead_seconds * rate_hz
                positions = positions or self.pacing.max_stage_ahead_positions
            else:
                continue
            if positions:
                found[edge.name] = min(math.ceil(positions), found.get(edge.name, sys.maxsize))
        return found

    def stage_edges(self) -> tuple[str, ...]:
        """Return the names of all edges that the stages of this session produce."""
        return tuple(dict.fromkeys(edge.name for edge in self.edges if edge.producer in self.roles))


def roles_for(edges: Edges, outputs: Iterable[str], model: str = "") -> tuple[str, ...]:
    """Return the roles that are needed to produce `outputs` for the client, upstream first. `model`
    is used only in error messages.

    Raises `NotImplementedYet` if the pipeline doesn't produce one of the outputs.
    """
    wanted = []
    for output in sorted(outputs):
        makers = [e.producer for e in edges if e.name == output and e.consumer == CLIENT]
        if not makers:
            made = ", ".join(sorted(client_outputs(edges))) or "nothing"
            raise NotImplementedYet(
                f"modalities: {model or 'this model'} can't generate {output}; it supports {made}",
                field="modalities",
            )
        wanted.extend(makers)
    found: list[str] = []
    for role in wanted:
        _collect(edges, role, found, frozenset())
    return tuple(found)


def client_outputs(edges: Edges) -> frozenset[str]:
    """Return all outputs of the pipeline that a client can request."""
    return frozenset(edge.name for edge in edges if edge.consumer == CLIENT) & OUTPUTS


def check_agreement(descriptions: Mapping[str, stage_pb2.DescribeResponse]) -> None:
    """Raise `FailedPrecondition` if the stages have different pipelines or checkpoints, or if an
    option's kind differs between stages.
    """
    kinds: dict[str, int] = {}
    for role, each in descriptions.items():
        for option in each.options:
            if kinds.setdefault(option.name, option.kind) != option.kind:
                raise FailedPrecondition(
                    f"the stages are incompatible: {role} describes the option {option.name} "
                    "differently",
                    stage=role,
                )
    for name in ("pipeline", "checkpoint_fingerprint"):
        values = {role: getattr(each, name) for role, each in descriptions.items()}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{role} has {value!r}" for role, value in values.items())
            raise FailedPrecondition(
                f"the stages are incompatible: they have different values for {name}: {told}"
            )


def _collect(edges: Edges, role: str, found: list[str], above: frozenset[str]) -> None:
    """Append a role, after all the roles that it depends on."""
    if role in found:
        return
    if role in above:
        raise FailedPrecondition(f"the pipeline's edges form a cycle at {role}")
    for edge in edges:
        if edge.consumer == role and edge.producer != CLIENT:
            _collect(edges, edge.producer, found, above | {role})
    found.append(role)


def _terms(member: Member) -> tuple[object, ...]:
    told = member.description
    return (
        member.role,
        told.pipeline,
        told.checkpoint_fingerprint,
        told.engine,
        tuple(told.voices),
        tuple(told.input_kinds),
        told.input_sample_rate_hz,
        told.max_input_audio_s,
        told.max_input_images,
        told.max_input_videos,
        told.max_input_text_bytes,
        told.context_limit,
        told.samples,
        told.reads_aloud,
        told.constrains_text,
        told.keeps_recordings,
        tuple(each.SerializeToString(deterministic=True) for each in told.options),
    )


def _frame_rate_hz(member: Member) -> float:
    """Return the number of codec frames per second of audio. Returns 0 if the stage has no codec
    frames.
    """
    description = member.description
    if not description.samples_per_frame:
        return 0.0
    return description.sample_rate_hz / description.samples_per_frame


def _to_stage(member: Member) -> session_pb2.Destination:
    target = session_pb2.StageTarget(address=member.address, boot_id=member.description.boot_id)
    return session_pb2.Destination(stage=target)
