"""Turns of a conversation that the stages hear while they are spoken, through the real services."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace

import numpy as np
import pytest
import pytest_asyncio

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.errors import AntiphonError
from antiphon.pipelines.qwen3_omni import CODE2WAV, TALKER, THINKER
from antiphon.tracing.span import TraceSpan
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    Part,
    TextPart,
)
from antiphon.values.live_conversation import (
    AppendAudio,
    ChangeSettings,
    CommitAudio,
    CreateResponse,
    ResponseDone,
    SpokenPart,
    TimedTurns,
)
from antiphon.values.sampling import SamplingRequest
from antiphon_gateway.calls.calls import Calls
from antiphon_gateway.conversations import kept_session
from antiphon_gateway.conversations.client import LogEntry, Made, RefuseResponse
from antiphon_gateway.conversations.conversation import LiveConversation
from antiphon_gateway.conversations.conversations import AdmittedConversation, Conversations
from antiphon_gateway.conversations.events import ConversationEvent
from antiphon_gateway.conversations.live_turn import LiveTurn
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.media.resampling import RecordingResampler
from antiphon_gateway.metrics import Metrics
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.call_segment import CallSegment
from antiphon_gateway.sessions.events import Event
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen3_omni.reference import Case
from antiphon_tools.launcher.launcher import Running
from tests.equality.truth import Truth

pytestmark = pytest.mark.asyncio(loop_scope="session")

RATE_HZ, HEARD_HZ = 24_000, 16_000
TOKENS, FRAMES, VOICE = 12, 60, "ethan"
SLICE_S = 5.0
# By default a talker draws, and the tiny one may draw the end before the first frame: of one answer
# here with 0.8 % of all seeds, of another with 1.8 %.
GREEDY = {TALKER: SamplingRequest(temperature=0.0, max_tokens=FRAMES)}


@dataclass(frozen=True)
class Answer:
    """What an answer says, and for how many samples."""

    text: str
    samples: int


@dataclass
class Entry:
    status: str = ""

    def note(self, event: Event) -> None:
        pass

    def for_key(self, order: Order) -> Order:
        return order

    def admitted(self) -> AbstractContextManager[None]:
        return nullcontext()

    def counted(self) -> None:
        pass


@asynccontextmanager
async def logged(refuse: RefuseResponse) -> AsyncIterator[LogEntry]:
    entry = Entry()
    try:
        yield entry
    except AntiphonError as error:
        await refuse(entry, error)


class Client:
    """A conversation, and the answers in it."""

    def __init__(
        self,
        conversations: Conversations,
        admitted: AdmittedConversation,
        settings: ConversationSettings,
        opened: asyncio.Queue[CallSegment],
    ) -> None:
        self._opened = opened
        self.settings = settings = replace(settings, voice=VOICE, sampling=GREEDY)
        self.answers: asyncio.Queue[ResponseDone] = asyncio.Queue(16)
        self.live: LiveConversation = conversations.begin(admitted, settings, self)

    def logged(self, made: Made, refuse: RefuseResponse) -> AbstractAsyncContextManager[LogEntry]:
        return logged(refuse)

    async def send(self, events: Sequence[ConversationEvent]) -> None:
        for event in events:
            if isinstance(event, ResponseDone):
                self.answers.put_nowait(event)

    async def speak(self, pcm16: bytes) -> CallSegment:
        """Say it in pieces of 100 ms; the segment in which the stages hear it by then."""
        for start in range(0, len(pcm16), 4800):
            await self.live.do(AppendAudio(pcm16[start : start + 4800], RATE_HZ))
        return await self._opened.get()

    async def answer(self) -> Answer:
        await self.live.do(CommitAudio())
        await self.live.do(CreateResponse())
        return await self.next_answer()

    async def next_answer(self) -> Answer:
        response = (await self.answers.get()).response
        assert response.error is None
        (item,) = response.items
        (content,) = item.parts
        assert isinstance(content, SpokenPart)
        return Answer(content.transcript, round(content.audio_s * RATE_HZ))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def conversations(running: Running) -> AsyncIterator[Conversations]:
    """A gateway's conversations, in this process, with the services that run."""
    stages = {
        role: StageConfig(addresses=(running.processes[role].address,))
        for role in (THINKER, TALKER, CODE2WAV)
    }
    # However slow the machine, what was heard is not given up before an answer is asked for.
    config = gateway_config(listen_idle_s=600.0)
    async with Fleet(Deployment(model=str(running.model), stages=stages)) as fleet:
        await fleet.wait_ready()
        made = Conversations(Calls(fleet, config, {}, Metrics(in_flight=lambda: 0.0)), config)
        yield made
        made.close()


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[CallSegment]:
    """The segments that are opened while somebody speaks."""
    segments: asyncio.Queue[CallSegment] = asyncio.Queue()

    def noted(
        number: int,
        rate_hz: int,
        order: Order,
        opening: Callable[[Order], Awaitable[CallSegment]],
        span: TraceSpan,
    ) -> LiveTurn:
        async def opened(order: Order) -> CallSegment:
            segment = await opening(order)
            segments.put_nowait(segment)
            return segment

        return LiveTurn(number, rate_hz, order, opened, span)

    monkeypatch.setattr(kept_session, "LiveTurn", noted)
    return segments


def spoken(seconds: float, seed: int) -> bytes:
    at = np.arange(round(seconds * RATE_HZ))
    noise = np.random.default_rng(seed).standard_normal(len(at)) * 100
    voice = 6000 * np.sin(at * (0.04 + 0.01 * seed)) * np.sin(at / 9000)
    return (noise + voice).astype("<i2").tobytes()


def answered(truth: Truth, *said: bytes | str, system: str = "") -> Answer | None:
    """The reference's answer to turns, audio of the user and text of the assistant, if no choice
    in it was close."""
    messages = [ConversationMessage("system", (TextPart(system),))] if system else []
    recordings = []
    for each in said:
        part: Part
        if isinstance(each, str):
            role, part = "assistant", TextPart(each)
        else:
            role, part = "user", AudioPart(len(recordings), alone=True)
            whole = np.frombuffer(each, "<i2").astype(np.float32) / 32768
            recordings.append(RecordingResampler(RATE_HZ, HEARD_HZ).add(whole, last=True))
        messages.append(ConversationMessage(role, (part,)))  # type: ignore[arg-type]
    whole = Conversation(tuple(messages), tuple(recordings))
    case = Case(whole, VOICE, thinker_max_tokens=TOKENS, talker_max_tokens=FRAMES)
    output = truth.reference.run(case)
    decoded: str = truth.reference.tokenizer.decode(output.text_ids, skip_special_tokens=True)
    if output.min_margin < MIN_MARGIN or not decoded:
        return None
    return Answer(decoded, len(output.waveform))


def safe(truth: Truth) -> tuple[list[bytes], list[Answer]]:
    """Two turns, the answers to them, and that to the second after an instruction."""
    for seed in range(12):
        said = [spoken(9.0, seed), spoken(5.0, seed + 20)]
        first = answered(truth, said[0])
        second = first and answered(truth, said[0], first.text, said[1])
        third = second and answered(truth, said[1], system="Hear")
        if first and second and third:
            return said, [first, second, third]
    raise AssertionError("no seed has safe margins")


def slices(truth: Truth) -> tuple[list[bytes], list[Answer]]:
    """Two slices, and the answers to each behind those before it."""
    for seed in range(40, 52):
        said = [spoken(SLICE_S, seed), spoken(SLICE_S, seed + 20)]
        first = answered(truth, said[0])
        second = first and answered(truth, said[0], first.text, said[1])
        if first and second:
            return said, [first, second]
    raise AssertionError("no seed has safe margins")


async def test_turns_are_heard_while_they_are_spoken_and_answered_like_the_whole(
    conversations: Conversations, truth: Truth, opened: asyncio.Queue[CallSegment]
) -> None:
    said, expected = await asyncio.to_thread(safe, truth)
    with conversations.admit("") as admitted:
        settings = admitted.settings
        client = Client(
            conversations,
            admitted,
            replace(settings, turns=None, max_output_tokens=TOKENS),
            opened,
        )
        async with client.live:
            for turn, answer in zip(said, expected[:2], strict=True):
                heard = await client.speak(turn)
                assert await client.answer() == answer
                # The segment that was open before anyone asked for an answer is the one.
                assert heard.over
                assert opened.empty()


async def test_every_slice_is_a_message_of_its_own_where_answers_come_by_the_clock(
    conversations: Conversations, truth: Truth, opened: asyncio.Queue[CallSegment]
) -> None:
    """The second slice comes in two pieces, and there is something behind it."""
    said, expected = await asyncio.to_thread(slices, truth)
    with conversations.admit("") as admitted:
        settings = admitted.settings
        own = replace(settings, turns=TimedTurns(SLICE_S), max_output_tokens=TOKENS)
        client = Client(conversations, admitted, own, opened)
        async with client.live:
            heard = await client.speak(said[0][:-4800])
            await client.live.do(AppendAudio(said[0][-4800:], RATE_HZ))
            assert await client.next_answer() == expected[0]
            assert heard.over
            for piece in (said[1][:4800], said[1][4800:] + said[0][:4800]):
                await client.live.do(AppendAudio(piece, RATE_HZ))
            assert await client.next_answer() == expected[1]


async def test_turn_is_answered_in_the_plain_way_when_something_else_is_asked_in_the_end(
    conversations: Conversations, truth: Truth, opened: asyncio.Queue[CallSegment]
) -> None:
    said, (*_, expected) = await asyncio.to_thread(safe, truth)
    with conversations.admit("") as admitted:
        settings = admitted.settings
        own = replace(settings, turns=None, max_output_tokens=TOKENS)
        client = Client(conversations, admitted, own, opened)
        async with client.live:
            heard = await client.speak(said[1])
            await client.live.do(ChangeSettings(replace(client.settings, instructions="Hear")))
            assert await client.answer() == expected
            assert heard.over
            assert opened.empty()


async def test_conversation_that_is_left_while_its_user_speaks_frees_the_stages(
    conversations: Conversations, opened: asyncio.Queue[CallSegment]
) -> None:
    with conversations.admit("") as admitted:
        settings = admitted.settings
        client = Client(conversations, admitted, replace(settings, turns=None), opened)
        async with client.live:
            heard = await client.speak(spoken(5.0, 3))
    assert heard.over
