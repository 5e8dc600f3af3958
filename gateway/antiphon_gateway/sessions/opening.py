"""Builds the messages that open a session and its segments on each stage. This module performs no
I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from antiphon.v1 import chunk_pb2, session_pb2
from antiphon.values.chunk import Chunk, Tensor
from antiphon.values.conversation import Conversation, to_tensors
from antiphon.values.history import History
from antiphon.values.options import OptionValue
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import Delivery, FinishReason
from antiphon.wire.chunks import chunk_to_proto
from antiphon.wire.convert import delivery_to_proto, policy_to_proto, sampling_to_proto
from antiphon.wire.history import history_to_proto
from antiphon.wire.options import option_value_to_proto
from antiphon_gateway.fleet.lineup import Lineup, Member
from antiphon_gateway.orders.prepared import AnswerAttempt, PreparedRequest


def session_open(
    session_id: str, member: Member, lineup: Lineup, windows: Mapping[str, int]
) -> session_pb2.SessionOpen:
    """Return a message that opens a session on one stage, without opening a segment."""
    return session_pb2.SessionOpen(
        session_id=session_id,
        pipeline=member.description.pipeline,
        checkpoint_fingerprint=member.description.checkpoint_fingerprint,
        routes=lineup.routes[member.role],
        windows=windows,
    )


def segment_openings(
    prepared: PreparedRequest,
    attempt: AnswerAttempt,
    lineup: Lineup,
    deployed_delivery: Mapping[str, Delivery],
    *,
    segment: int,
    last: bool,
    live: bool,
    traceparent: str,
) -> dict[str, session_pb2.SegmentOpen]:
    """Return the messages that open a segment on each stage of a session, by role.

    The messages differ only in the options and the types of history that each stage reads.
    """
    order, reader = prepared.order, lineup.input_member.role
    given = {role or reader: settings for role, settings in order.sampling.items()}
    sampling = with_seeds(given, lineup.roles, reader, prepared.seed(attempt))
    delivery = {e: d for e, d in deployed_delivery.items() if e in lineup.stage_edges()}
    if order.delivery is not None:
        delivery = dict.fromkeys(lineup.stage_edges(), order.delivery)
    shared = session_pb2.SegmentOpen(
        sampling={role: sampling_to_proto(settings) for role, settings in sampling.items()},
        voice=prepared.voice,
        outputs=sorted(lineup.outputs),
        delivery={edge: delivery_to_proto(value) for edge, value in delivery.items()},
        segment=segment,
        deadline_s=attempt.deadline_s,
        last=last,
        live=live,
        choice=attempt.choice,
        traceparent=traceparent,
    )
    if order.chunk_policy is not None:
        shared.chunk_policy.CopyFrom(policy_to_proto(order.chunk_policy))
    return {
        member.role: _own(member, shared, prepared.options.get(member.role, {}), attempt.history)
        for member in lineup.members
    }


def _own(
    member: Member,
    shared: session_pb2.SegmentOpen,
    options: Mapping[str, OptionValue],
    history: History | None,
) -> session_pb2.SegmentOpen:
    """Return the message for one stage, including the options and the history that this stage
    reads.
    """
    kinds = tuple(member.description.goes_on_from) if history is not None else ()
    if not (options or kinds):
        return shared
    own = session_pb2.SegmentOpen()
    own.CopyFrom(shared)
    for name, value in options.items():
        own.options[name].CopyFrom(option_value_to_proto(value))
    if history is not None and kinds:
        own.history.CopyFrom(history_to_proto(history, kinds))
    return own


def input_chunk(
    session_id: str,
    conversation: Conversation,
    lineup: Lineup,
    *,
    segment: int,
    sequence: int,
    last: bool,
    live: bool,
) -> chunk_pb2.Chunk:
    """Return the conversation as a segment's input chunk. Unless the segment is live, this is all
    of its input.
    """
    ends = not live
    chunk = Chunk(
        session_id=session_id,
        edge=lineup.input_edge.name,
        segment=segment,
        sequence=sequence,
        tensors=to_tensors(conversation),
        segment_finished=ends,
        finished=ends and last,
        finish_reason=FinishReason.STOP if ends else None,
    )
    return chunk_to_proto(chunk)


def sample_chunk(
    session_id: str, edge: str, segment: int, samples: Tensor, *, sequence: int
) -> chunk_pb2.Chunk:
    """Return a chunk with further samples of a live segment's recording."""
    chunk = Chunk(
        session_id, edge, segment=segment, sequence=sequence, tensors={"samples": samples}
    )
    return chunk_to_proto(chunk)


def with_seeds(
    sampling: Mapping[str, SamplingRequest], roles: tuple[str, ...], input_role: str, drawn: int
) -> dict[str, SamplingRequest]:
    """Return the sampling settings of all roles, each with a seed.

    If a role has no seed, it uses the seed of the stage that reads the input. If that stage has
    none either, `drawn` is used. Stages with the same seed still draw independently, because their
    random numbers also depend on the role.
    """
    reader = sampling.get(input_role)
    shared = drawn if reader is None or reader.seed is None else reader.seed
    complete = dict.fromkeys(roles, SamplingRequest(seed=shared))
    for role in sampling.keys() & complete.keys():
        settings = sampling[role]
        complete[role] = settings if settings.seed is not None else replace(settings, seed=shared)
    return complete
