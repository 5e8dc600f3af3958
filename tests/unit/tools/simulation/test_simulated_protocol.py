"""The protocol in many orders, and that what is wrong with it would be found."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.runtime.session.live_sessions import LiveSessions
from antiphon.runtime.session.session import LiveSession
from antiphon.runtime.session.table import SessionTable
from antiphon.transport.link.incoming.link import ResponseLog
from antiphon.transport.link.outgoing.send_log import SendLog
from antiphon.values.history import History
from antiphon_gateway.failover.delivered import DeliveredOutput
from antiphon_tools.simulation.__main__ import main
from antiphon_tools.simulation.search import Found, play, scenario_of, shrink

SEEDS = 200
MOST_SEEDS = 2_000
"""In which a planted fault must show."""


def test_nothing_is_wrong_in_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", str(SEEDS)]) == 0, capsys.readouterr().err


def test_a_seed_draws_the_same_world_again() -> None:
    assert scenario_of(5) == scenario_of(5) != scenario_of(6)
    assert play(scenario_of(5)) == play(scenario_of(5))


def nothing(*_: object) -> list[Any]:
    return []


def keep_on(*_: object) -> None:
    return


def count_nothing(*_: object) -> int:
    return 0


def lose_the_first_frame(delivered: DeliveredOutput) -> History:
    return History(frames=WHOLE_HISTORY(delivered).frames[1:])


WHOLE_HISTORY = vars(DeliveredOutput)["history"].fget
FAULTS: dict[str, tuple[object, str, Any]] = {
    "credit is dropped": (SessionTable, "_credit", nothing),
    "a lost destination is not noticed": (SessionTable, "_lose_target", nothing),
    "who left is kept": (SessionTable, "_stream_lost", nothing),
    "a cancel is not heard": (SessionTable, "_cancel_segment", nothing),
    "what was cancelled is never reported": (LiveSession, "released", nothing),
    "a session that is done stays": (LiveSessions, "end_if_done", nothing),
    "attempts are mixed up": (DeliveredOutput, "start_over", keep_on),
    "a history lacks a frame": (DeliveredOutput, "history", property(lose_the_first_frame)),
    "acknowledgements are dropped": (SendLog, "acknowledge", nothing),
    "nothing is sent again": (SendLog, "rewind", count_nothing),
    "answers that a break has lost stay lost": (ResponseLog, "since", nothing),
}


def first_finding() -> Found:
    for seed in range(MOST_SEEDS):
        result = play(scenario_of(seed))
        if isinstance(result, Found):
            return result
    raise AssertionError("it was not found")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found_and_its_story_is_short(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where, name, replacement = FAULTS[fault]
    monkeypatch.setattr(where, name, replacement)
    found = first_finding()
    short = shrink(found)
    assert short.chosen <= min(30, found.chosen)
    assert str(short).splitlines()[-1].strip() == short.what
