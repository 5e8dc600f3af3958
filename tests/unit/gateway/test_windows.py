from __future__ import annotations

from antiphon.v1 import session_pb2, stage_pb2
from gateway.fleet.lineup import Lineup, Member

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


def windows(*outputs: str, roles: tuple[str, ...] = ROLES, rate_hz: int = 24_000) -> dict[str, int]:
    rates = {"code2wav": {"sample_rate_hz": rate_hz, "samples_per_frame": 1920 if rate_hz else 0}}
    members = tuple(
        Member(role, f"{role}:1", stage_pb2.DescribeResponse(**rates.get(role, {})))
        for role in roles
    )
    return Lineup(members, EDGES, frozenset(outputs)).windows(ahead_s=0.5, stage_ahead_s=4.0)


def test_windows_are_seconds_of_audio_and_of_frames() -> None:
    assert windows("text", "audio") == {"codes": 50, "audio": 12_000}


def test_windows_are_none_when_no_audio_is_wanted() -> None:
    assert windows("text", roles=("thinker",)) == {}


def test_windows_are_none_when_no_stage_tells_a_rate() -> None:
    assert windows("text", "audio", rate_hz=0) == {}


def test_windows_are_at_least_one_position() -> None:
    assert min(windows("audio", rate_hz=1).values()) == 1


def test_windows_fit_the_message_that_carries_them() -> None:
    carried = session_pb2.SessionOpen(windows=windows("text", "audio")).windows
    assert dict(carried) == windows("text", "audio")
