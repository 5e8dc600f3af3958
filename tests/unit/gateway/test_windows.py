from __future__ import annotations

from antiphon.v1 import session_pb2, stage_pb2
from antiphon_gateway.fleet.lineup import Lineup, Member
from antiphon_testkit.gateway_settings import gateway_config

GRAPH = (
    ("input", "", "thinker", False),
    ("text", "thinker", "", False),
    ("tokens", "thinker", "talker", False),
    ("codes", "talker", "code2wav", True),
    ("audio", "code2wav", "", True),
)
EDGES = tuple(
    stage_pb2.PipelineEdge(name=name, producer=producer, consumer=consumer, governed=governed)
    for name, producer, consumer, governed in GRAPH
)
ROLES = ("thinker", "talker", "code2wav")


CONFIG = gateway_config(
    max_ahead_seconds=0.5, max_stage_ahead_seconds=4.0, max_stage_ahead_positions=7
)


def windows(
    *outputs: str,
    roles: tuple[str, ...] = ROLES,
    rate_hz: int = 24_000,
    edges: tuple[stage_pb2.PipelineEdge, ...] = EDGES,
) -> dict[str, int]:
    rates = {"code2wav": {"sample_rate_hz": rate_hz, "samples_per_frame": 1920 if rate_hz else 0}}
    members = tuple(
        Member(role, f"{role}:1", stage_pb2.DescribeResponse(**rates.get(role, {})))
        for role in roles
    )
    return Lineup(members, edges, frozenset(outputs), pacing=CONFIG.pacing).windows


def test_windows_are_seconds_of_audio_and_of_frames() -> None:
    assert windows("text", "audio") == {"codes": 50, "audio": 12_000}


def test_windows_are_none_when_no_audio_is_wanted() -> None:
    assert windows("text", roles=("thinker",)) == {}


def test_windows_to_a_stage_are_positions_when_no_stage_tells_a_rate() -> None:
    assert windows("text", "audio", rate_hz=0) == {"codes": 7}


def test_windows_to_a_stage_are_seconds_of_the_edge_when_its_consumer_tells_no_rate() -> None:
    edges = (
        *EDGES[:3],
        stage_pb2.PipelineEdge(
            name="codes", producer="talker", consumer="code2wav", governed=True, rate_hz=25.0
        ),
    )
    assert windows("text", "audio", rate_hz=0, edges=edges) == {"codes": 100}


def test_windows_are_none_for_what_the_client_takes_besides_audio() -> None:
    both = tuple(
        stage_pb2.PipelineEdge(name="text", producer="thinker", consumer=consumer, governed=True)
        for consumer in ("", "talker")
    )
    assert windows("text", edges=both) == {}
    assert windows("audio", edges=both) == {"text": 7}


def test_windows_are_at_least_one_position() -> None:
    assert min(windows("audio", rate_hz=1).values()) == 1


def test_windows_fit_the_message_that_carries_them() -> None:
    carried = session_pb2.SessionOpen(windows=windows("text", "audio")).windows
    assert dict(carried) == windows("text", "audio")
