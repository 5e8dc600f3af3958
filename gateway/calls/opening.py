"""The messages that open a session and its segment on each stage. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.chunk import Chunk
from antiphon.conversation import to_tensors
from antiphon.errors import InvalidArgument
from antiphon.segment import Delivery, FinishReason
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.convert import delivery_to_proto, policy_to_proto, sampling_to_proto
from gateway.calls.request import AUDIO, SpeechRequest, with_seeds
from gateway.fleet.lineup import Lineup, Member


def opening_messages(
    session_id: str,
    request: SpeechRequest,
    lineup: Lineup,
    deadline_s: float,
    deployed_delivery: Mapping[str, Delivery],
    windows: Mapping[str, int],
) -> dict[str, session_pb2.SessionOpen]:
    """What opens the session on each stage, by role, with its segment and all input.

    Raises `InvalidArgument` for an unknown role."""
    segment = _segment_open(request, lineup, deadline_s, deployed_delivery)
    openings = {
        member.role: _session_open(session_id, member, lineup, windows, segment)
        for member in lineup.members
    }
    openings[lineup.input_member.role].first_input.append(_input(session_id, request, lineup))
    return openings


def _session_open(
    session_id: str,
    member: Member,
    lineup: Lineup,
    windows: Mapping[str, int],
    segment: session_pb2.SegmentOpen,
) -> session_pb2.SessionOpen:
    return session_pb2.SessionOpen(
        session_id=session_id,
        pipeline=member.description.pipeline,
        checkpoint_fingerprint=member.description.checkpoint_fingerprint,
        routes=lineup.routes(member.role),
        windows=windows,
        first_segment=segment,
    )


def _segment_open(
    request: SpeechRequest,
    lineup: Lineup,
    deadline_s: float,
    deployed_delivery: Mapping[str, Delivery],
) -> session_pb2.SegmentOpen:
    """The one message that all stages get alike."""
    known = {edge.producer for edge in lineup.edges} - {""}
    for role in request.sampling:
        if role not in known:
            raise InvalidArgument(f"sampling.{role}: no such stage", field=f"sampling.{role}")
    sampling = with_seeds(request.sampling, lineup.roles, lineup.input_member.role)
    delivery = {e: d for e, d in deployed_delivery.items() if e in lineup.stage_edges()}
    if request.delivery is not None:
        delivery = dict.fromkeys(lineup.stage_edges(), request.delivery)
    message = session_pb2.SegmentOpen(
        sampling={role: sampling_to_proto(settings) for role, settings in sampling.items()},
        voice=request.voice if AUDIO in request.outputs else "",
        outputs=sorted(request.outputs),
        delivery={edge: delivery_to_proto(value) for edge, value in delivery.items()},
        deadline_s=deadline_s,
        last=True,
    )
    if request.chunk_policy is not None:
        message.chunk_policy.CopyFrom(policy_to_proto(request.chunk_policy))
    return message


def _input(session_id: str, request: SpeechRequest, lineup: Lineup) -> chunk_pb2.Chunk:
    """The conversation as the one input chunk, which ends the input."""
    chunk = Chunk(
        session_id=session_id,
        edge=lineup.input_edge.name,
        tensors=to_tensors(request.conversation),
        segment_finished=True,
        finished=True,
        finish_reason=FinishReason.STOP,
    )
    return chunk_to_proto(chunk)
