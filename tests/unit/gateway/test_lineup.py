from __future__ import annotations

import pytest

from antiphon.errors import FailedPrecondition, InvalidArgument, NotImplementedYet
from antiphon.v1 import stage_pb2
from antiphon_gateway.fleet.lineup import Lineup, Member, check_agreement, roles_for

OMNI = (
    ("input", "", "thinker"),
    ("text", "thinker", ""),
    ("prompt", "thinker", "talker"),
    ("tokens", "thinker", "talker"),
    ("codes", "talker", "code2wav"),
    ("audio", "code2wav", ""),
)
# Two stages with other names; one edge goes to the client and to a stage.
OTHER = (
    ("question", "", "speaker"),
    ("text", "speaker", ""),
    ("mel", "speaker", "vocoder"),
    ("text", "speaker", "vocoder"),
    ("audio", "vocoder", ""),
)


def edges(graph: tuple[tuple[str, str, str], ...]) -> tuple[stage_pb2.PipelineEdge, ...]:
    return tuple(stage_pb2.PipelineEdge(name=n, producer=p, consumer=c) for n, p, c in graph)


def lineup(graph: tuple[tuple[str, str, str], ...], *outputs: str) -> Lineup:
    roles = roles_for(edges(graph), outputs)
    members = tuple(
        Member(
            role,
            f"{role}:1",
            stage_pb2.DescribeResponse(voices=["a", "b"], boot_id=f"boot-of-{role}"),
        )
        for role in roles
    )
    return Lineup(members, edges(graph), frozenset(outputs))


@pytest.mark.parametrize(
    ("graph", "outputs", "roles"),
    [
        (OMNI, ("text",), ("thinker",)),
        (OMNI, ("text", "audio"), ("thinker", "talker", "code2wav")),
        (OTHER, ("text",), ("speaker",)),
        (OTHER, ("text", "audio"), ("speaker", "vocoder")),
    ],
)
def test_roles_are_those_that_the_outputs_need_upstream_first(
    graph: tuple[tuple[str, str, str], ...], outputs: tuple[str, ...], roles: tuple[str, ...]
) -> None:
    assert roles_for(edges(graph), outputs) == roles


def test_roles_are_refused_when_no_stage_makes_the_output() -> None:
    with pytest.raises(NotImplementedYet, match="audio"):
        roles_for(edges((("input", "", "a"), ("text", "a", ""))), ("text", "audio"))


def test_roles_are_refused_when_the_graph_is_a_circle() -> None:
    graph = (("text", "a", ""), ("x", "a", "b"), ("y", "b", "a"))
    with pytest.raises(FailedPrecondition, match="cycle"):
        roles_for(edges(graph), ("text",))


def test_routes_go_to_the_client_and_to_stages_of_the_call() -> None:
    (text, mel) = lineup(OTHER, "text", "audio").routes["speaker"]
    assert text.edge == "text"
    assert [to.WhichOneof("target") for to in text.destinations] == ["reply", "stage"]
    assert mel.destinations[0].stage.address == "vocoder:1"
    assert mel.destinations[0].stage.boot_id == "boot-of-vocoder"
    (only,) = lineup(OTHER, "text").routes["speaker"]
    assert (only.edge, len(only.destinations)) == ("text", 1)


def test_input_goes_to_the_consumer_of_the_clients_edge() -> None:
    chosen = lineup(OTHER, "text")
    assert chosen.input_edge.name == "question"
    assert chosen.input_member.role == "speaker"


def test_voice_is_checked_when_one_is_named_and_else_left_to_the_stages() -> None:
    chosen = lineup(OMNI, "text")
    assert chosen.choose_voice("") == ""
    assert chosen.choose_voice("B") == "b"
    with pytest.raises(InvalidArgument, match="use one of: a, b"):
        chosen.choose_voice("c")


def test_stages_disagree_when_their_checkpoints_differ() -> None:
    one = stage_pb2.DescribeResponse(pipeline="p", checkpoint_fingerprint="1")
    two = stage_pb2.DescribeResponse(pipeline="p", checkpoint_fingerprint="2")
    check_agreement({"a": one, "b": one})
    with pytest.raises(FailedPrecondition, match=r"a has '1', b has '2'"):
        check_agreement({"a": one, "b": two})
