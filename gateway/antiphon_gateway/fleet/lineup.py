"""Which stages a session needs, and where each of their output edges goes. Pure.

Everything follows from the graph that the stages describe: an edge without a
producer comes from the client, one without a consumer goes to it. The stages
needed are those from which a wanted client edge can be reached.
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
    """A stage that takes part in a session."""

    role: str
    address: str
    description: stage_pb2.DescribeResponse


@dataclass(frozen=True)
class Lineup:
    """The stages of one session, upstream first, with the graph between them.

    Sessions on the same replicas share one; what follows from it is derived once. `names` has other
    names of voices, and `pacing` how far output may run ahead.
    """

    members: tuple[Member, ...]
    edges: tuple[stage_pb2.PipelineEdge, ...]
    outputs: frozenset[str]
    names: Names = NO_OTHER_NAMES
    pacing: PacingConfig = USUAL_PACING

    @cached_property
    def roles(self) -> tuple[str, ...]:
        """The roles that take part, upstream first."""
        return tuple(member.role for member in self.members)

    @cached_property
    def input_edge(self) -> stage_pb2.PipelineEdge:
        """The edge that carries the client's input."""
        return next(edge for edge in self.edges if edge.producer == CLIENT)

    @cached_property
    def input_member(self) -> Member:
        """The stage that the client's input goes to."""
        return self.member(self.input_edge.consumer)

    def member(self, role: str) -> Member:
        """The stage of that role."""
        return next(member for member in self.members if member.role == role)

    def producer(self, output: str) -> Member:
        """The stage that makes an edge to the client."""
        return self.member(self.makers[output])

    @cached_property
    def makers(self) -> dict[str, str]:
        """The role that makes each edge to the client, wanted or not, of those that take part."""
        return {
            edge.name: edge.producer
            for edge in self.edges
            if edge.consumer == CLIENT and edge.producer in self.roles
        }

    @cached_property
    def build(self) -> tuple[str, str]:
        """What all its stages have in common: the pipeline and the checkpoint's fingerprint."""
        told = self.members[0].description
        return told.pipeline, told.checkpoint_fingerprint

    @cached_property
    def terms(self) -> tuple[tuple[object, ...], ...]:
        """What its stages accept and what they need of a request. Line-ups of equal terms take the
        same prepared request."""
        return tuple(_terms(member) for member in self.members)

    @cached_property
    def sample_rate_hz(self) -> int:
        """Of produced audio; 0 when none is wanted."""
        return self.producer(AUDIO).description.sample_rate_hz if AUDIO in self.outputs else 0

    def check_rate(self) -> None:
        """Raise `FailedPrecondition` if a stage generates wanted audio and reports no rate."""
        if AUDIO in self.outputs and not self.sample_rate_hz:
            role = self.makers[AUDIO]
            raise FailedPrecondition(
                f"{role} makes audio but tells no sample_rate_hz; set it in its StageFacts",
                stage=role,
            )

    @cached_property
    def samples_per_frame(self) -> int:
        """Of produced audio; 0 when none is wanted or it has no frames."""
        return self.producer(AUDIO).description.samples_per_frame if AUDIO in self.outputs else 0

    @cached_property
    def voices(self) -> tuple[str, ...]:
        """The voices that the session can choose from."""
        return next((tuple(m.description.voices) for m in self.members if m.description.voices), ())

    @cached_property
    def _voice_aliases(self) -> dict[str, str]:
        return self.names.voice_aliases(self.voices)

    def choose_voice(self, name: str) -> str:
        """The voice of that name, or of that alias, in lower case; "" stays, and the stages use
        their default.

        Raises `InvalidArgument`.
        """
        voices = self.voices
        name = self._voice_aliases.get(name.lower(), name)
        if name and name.lower() not in voices:
            known = (
                f"there are: {', '.join(voices)}" if voices else "this model has no named voices"
            )
            raise InvalidArgument(f"voice: no voice {name!r}; {known}", field="voice")
        return name.lower()

    @cached_property
    def routes(self) -> dict[str, tuple[session_pb2.Route, ...]]:
        """The consumers of each output edge of a stage in this session, by role."""
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
        """The credit windows in positions, by governed edge.

        The window of audio to the client has a fixed duration. The window to a stage has a duration
        by the rate of the stage's codec frames or of the edge, or a number of positions if neither
        is reported. Other output to the client has no credit.
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
        """Names of the edges that stages of this session produce."""
        return tuple(dict.fromkeys(edge.name for edge in self.edges if edge.producer in self.roles))


def roles_for(edges: Edges, outputs: Iterable[str], model: str = "") -> tuple[str, ...]:
    """The roles that making `outputs` for the client needs, upstream first; errors name `model`.

    Raises `NotImplementedYet` when the pipeline has no such edge to the client.
    """
    wanted = []
    for output in sorted(outputs):
        makers = [e.producer for e in edges if e.name == output and e.consumer == CLIENT]
        if not makers:
            made = ", ".join(sorted(client_outputs(edges))) or "nothing"
            raise NotImplementedYet(
                f"modalities: {model or 'this model'} makes no {output}; its outputs are {made}",
                field="modalities",
            )
        wanted.extend(makers)
    found: list[str] = []
    for role in wanted:
        _collect(edges, role, found, frozenset())
    return tuple(found)


def client_outputs(edges: Edges) -> frozenset[str]:
    """Everything that a client can ask of the pipeline."""
    return frozenset(edge.name for edge in edges if edge.consumer == CLIENT) & OUTPUTS


def check_agreement(descriptions: Mapping[str, stage_pb2.DescribeResponse]) -> None:
    """Raise `FailedPrecondition` unless all stages are of one pipeline and checkpoint, and an
    option is of one kind wherever it is read."""
    kinds: dict[str, int] = {}
    for role, each in descriptions.items():
        for option in each.options:
            if kinds.setdefault(option.name, option.kind) != option.kind:
                raise FailedPrecondition(
                    f"the stages do not fit together: the option {option.name} is of another kind "
                    f"for {role}",
                    stage=role,
                )
    for name in ("pipeline", "checkpoint_fingerprint"):
        values = {role: getattr(each, name) for role, each in descriptions.items()}
        if len(set(values.values())) > 1:
            told = ", ".join(f"{role} has {value!r}" for role, value in values.items())
            raise FailedPrecondition(f"the stages do not fit together: {name} differs: {told}")


def _collect(edges: Edges, role: str, found: list[str], above: frozenset[str]) -> None:
    """Append a role after everything that it consumes from."""
    if role in found:
        return
    if role in above:
        raise FailedPrecondition(f"the pipeline's edges form a circle at {role}")
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
    """Codec frames per second of audio; 0 when the stage takes none."""
    description = member.description
    if not description.samples_per_frame:
        return 0.0
    return description.sample_rate_hz / description.samples_per_frame


def _to_stage(member: Member) -> session_pb2.Destination:
    target = session_pb2.StageTarget(address=member.address, boot_id=member.description.boot_id)
    return session_pb2.Destination(stage=target)
