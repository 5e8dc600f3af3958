"""A stage's address that another process has come to: what was meant for the first is refused."""

from __future__ import annotations

from antiphon.runtime.engine import LoadedStage
from antiphon.v1 import session_pb2
from antiphon_testkit.qwen3_omni.fake_engine import FACTS, FakeEngine
from antiphon_testkit.qwen3_omni.fake_stages import running_stage
from antiphon_testkit.qwen3_omni.fake_talker import FakeTalker
from antiphon_testkit.stage_harness import RunningStage
from tests.integration.stage_session import Request, Session, opening

FRAMES = 5
# So few that nobody is done before the consumer has taken something.
WINDOWS = {"codes": 2}


async def speak(talker: RunningStage, name: str, to: session_pb2.StageTarget) -> Session:
    """A session of the talker, whose codes go there."""
    session = Session(talker, name)
    route = session_pb2.Route(edge="codes", destinations=[session_pb2.Destination(stage=to)])
    turn = session_pb2.SegmentOpen(outputs=["audio"], last=True)
    await session.send(
        Request(open=session_pb2.SessionOpen(session_id=name, routes=[route], windows=WINDOWS)),
        Request(segment_open=turn),
    )
    await session.opened()
    return session


async def test_sessions_of_an_earlier_boot_end_at_once_and_those_of_this_one_go_on() -> None:
    async with (
        running_stage(LoadedStage(FakeEngine(), FACTS), "code2wav") as code2wav,
        running_stage(LoadedStage(FakeTalker(FRAMES), FACTS), "talker") as talker,
    ):
        hearing = Session(code2wav, "now")
        await hearing.send(*opening("now", windows=WINDOWS))
        boot_id = (await hearing.opened()).boot_id
        late = session_pb2.StageTarget(address=code2wav.address, boot_id="an-earlier-one")
        now = session_pb2.StageTarget(address=code2wav.address, boot_id=boot_id)
        mistaken = await speak(talker, "mistaken", late)
        right = await speak(talker, "now", now)
        error = await mistaken.error()
        assert error.code == session_pb2.ErrorCode.ERROR_CODE_UNAVAILABLE
        assert error.retry_after_s
        assert "opened to boot an-earlier-one" in error.message
        heard = 0
        while heard < FRAMES:
            chunk = await hearing.audio()
            heard += len(chunk.tensors["codes"]) if chunk.tensors else 0
        await right.read("report")
        (state,) = talker.stage.outgoing_links()
        assert state.connected
