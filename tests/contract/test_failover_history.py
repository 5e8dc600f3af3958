"""Another attempt at an answer gets what the client has of it, as far as its stages ask for it."""

from __future__ import annotations

import pytest

from antiphon.errors import InvalidArgument, Unavailable
from antiphon.values.history import FRAMES as FRAME_HISTORY
from antiphon.values.history import IDS
from antiphon.wire.history import history_from_proto
from antiphon_gateway.sessions.events import AudioProduced, Event, TextProduced
from tests.contract.failing_stages import Failing, answered, check_whole, failing, told_by
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    ROLES,
    TALKER,
    TEXTS,
    THINKER,
    FakeStage,
    Session,
)
from tests.contract.replicated_stages import open_replicas

pytestmark = pytest.mark.asyncio(loop_scope="session")

GOES_ON_FROM = {THINKER: [IDS], TALKER: [FRAME_HISTORY], CODE2WAV: []}


async def test_another_attempt_gets_what_the_client_has() -> None:
    script = Failing(CODE2WAV)

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        failing(CODE2WAV, script)(fakes)
        for role, kinds in GOES_ON_FROM.items():
            for fake in fakes[role]:
                fake.description.goes_on_from.extend(kinds)

    def fail(events: list[Event]) -> None:
        has_text = sum(isinstance(each, TextProduced) for each in events) == len(TEXTS)
        if has_text and any(isinstance(each, AudioProduced) for each in events):
            script.now.set()

    async with open_replicas(**dict.fromkeys(ROLES, 2), prepare=prepare) as replicas:
        check_whole(await answered(replicas, fail))
        for role, kinds in GOES_ON_FROM.items():
            sessions = [each for fake in replicas.fakes[role] for each in fake.sessions]
            by_history = sorted(each.segment.HasField("history") for each in sessions)
            assert by_history == [False, bool(kinds)]
            for each in sessions:
                history = history_from_proto(each.segment.history)
                if each.segment.HasField("history"):
                    ids, frames = sum(map(len, TEXTS)), (FRAMES[0], 16)
                    assert len(history.ids) == (ids if IDS in kinds else 0)
                    assert history.frames.shape == (frames if FRAME_HISTORY in kinds else (0, 0))


class RefusingHistories(Failing):
    """As `Failing`; a session that comes with a history is refused, before it is opened or when it
    is."""

    def __init__(self, role: str, *, when_open: bool) -> None:
        super().__init__(role)
        self._when_open = when_open

    async def __call__(self, session: Session) -> None:
        if not session.segment.HasField("history"):
            await super().__call__(session)
            return
        if self._when_open:
            await session.opened()
        await session.error(InvalidArgument("not mine", field=f"history.{FRAME_HISTORY}"))


@pytest.mark.parametrize("when_open", [False, True])
async def test_all_is_made_anew_when_a_stage_refuses_a_history(when_open: bool) -> None:
    script = RefusingHistories(TALKER, when_open=when_open)

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        failing(TALKER, script)(fakes)
        for role, kinds in GOES_ON_FROM.items():
            for fake in fakes[role]:
                fake.description.goes_on_from.extend(kinds)

    def fail(events: list[Event]) -> None:
        if told_by(CODE2WAV, events):
            script.now.set()

    async with open_replicas(**dict.fromkeys(ROLES, 2), prepare=prepare) as replicas:
        check_whole(await answered(replicas, fail))
        sessions = [each for fake in replicas.fakes[TALKER] for each in fake.sessions]
        assert sorted(each.segment.HasField("history") for each in sessions) == [False, False, True]


async def test_a_refused_history_is_an_error_when_no_failover_is_left() -> None:
    script = RefusingHistories(TALKER, when_open=False)

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        failing(TALKER, script)(fakes)
        for fake in fakes[TALKER]:
            fake.description.goes_on_from.append(FRAME_HISTORY)

    def fail(events: list[Event]) -> None:
        if told_by(CODE2WAV, events):
            script.now.set()

    async with open_replicas(**dict.fromkeys(ROLES, 2), prepare=prepare, failovers=1) as replicas:
        with pytest.raises(Unavailable, match="the engine is gone"):
            await answered(replicas, fail)


@pytest.mark.parametrize(
    ("kinds", "settings"), [((), {}), ((IDS, FRAME_HISTORY), {"max_history_bytes": 4})]
)
async def test_stages_make_all_anew_when_nothing_is_told(
    kinds: tuple[str, ...], settings: dict[str, int]
) -> None:
    script = Failing(THINKER)

    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        failing(THINKER, script)(fakes)
        for each in (fake for role in ROLES for fake in fakes[role]):
            each.description.goes_on_from.extend(kinds)

    def fail(events: list[Event]) -> None:
        if told_by(THINKER, events):
            script.now.set()

    async with open_replicas(**dict.fromkeys(ROLES, 2), prepare=prepare, **settings) as replicas:
        check_whole(await answered(replicas, fail))
        for role in ROLES:
            for fake in replicas.fakes[role]:
                assert not any(each.segment.HasField("history") for each in fake.sessions)
