"""When both clients have an answer continued whose server is lost, and by what they ask for it."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

import antiphon
from antiphon.errors import AntiphonError, DataLoss, Unavailable
from antiphon.v1 import functions_pb2, speech_pb2
from antiphon.wire.convert import error_to_proto
from tests.unit.client.speech_server import Responses, Speech, audio, finished, started, text
from tests.unit.client.twins import ask_async, ask_blocking

Serve = Callable[..., Speech]
Ask = Callable[..., Awaitable[antiphon.Reply]]
Message = speech_pb2.GenerateResponse
SOON = antiphon.Retry(pause_s=0.01)
GENEROUS_S = 120.0
SEED = (1 << 62) + 5
BEGUN = (started(SEED), text("Größ", 7, 8), audio(0, b"\x01\x00\x02\x00"))
REST = (started(SEED), text("e", 9), audio(2, b"\x03\x00"), finished())
both = pytest.mark.parametrize("ask", [ask_blocking, ask_async], ids=["blocking", "async"])


def in_turn(*answers: Sequence[Message | AntiphonError]) -> Any:
    """One for each request; an error ends the call, as a lost server does."""

    def answer(request: speech_pb2.GenerateRequest, server: Speech) -> Responses:
        for each in answers[len(server.requests) - 1]:
            if isinstance(each, AntiphonError):
                raise each
            yield each

    return answer


def told(error: AntiphonError) -> Message:
    """The error as the last event of a server that goes on."""
    return Message(error=error_to_proto(error))


@both
@pytest.mark.parametrize(
    "loss",
    [
        pytest.param(Unavailable("the connection broke"), id="lost"),
        pytest.param(told(Unavailable("the gateway stops")), id="stops"),
    ],
)
async def test_an_answer_is_continued_where_it_was(
    serve: Serve, ask: Ask, loss: Message | AntiphonError
) -> None:
    server = serve(in_turn((*BEGUN, loss), REST))
    reply = await ask(server.address, retry=SOON)
    assert (reply.text, reply.pcm16) == ("Größe", b"\x01\x00\x02\x00\x03\x00")
    first, second = server.requests
    assert not first.HasField("delivered")
    assert second.delivered == speech_pb2.DeliveredPart(
        drawn_seed=SEED,
        characters=4,
        text_sha256=hashlib.sha256("Größ".encode()).digest(),
        token_ids=2,
        samples=2,
    )
    second.ClearField("delivered")
    assert second == first


@both
async def test_floats_of_frames_are_counted_by_value(serve: Serve, ask: Ask) -> None:
    floats = speech_pb2.AudioDelta(pcm16=b"\x01\x00", latents=bytes(4 * 6))
    begun = (started(SEED), Message(audio=floats))
    server = serve(in_turn((*begun, Unavailable("gone")), (started(SEED), finished())))
    await ask(server.address, retry=SOON)
    assert server.requests[1].delivered.codes == 6


def step(done: int) -> Message:
    return Message(progress=speech_pb2.StepProgress(stage="painter", done=done, due=4))


@both
async def test_whole_images_are_counted_and_steps_are_not(serve: Serve, ask: Ask) -> None:
    images = [
        Message(image=speech_pb2.ImageDelta(images=[speech_pb2.MadeImage(file=file)]))
        for file in (b"one", b"two")
    ]
    begun = (started(SEED), step(1), images[0], step(2), Unavailable("gone"))
    server = serve(in_turn(begun, (started(SEED), step(1), images[1], finished())))
    reply = await ask(server.address, retry=SOON)
    assert [each.file for each in reply.images] == [b"one", b"two"]
    assert server.requests[1].delivered.images == 1


@both
async def test_each_loss_has_attempts_of_its_own_while_the_answer_goes_on(
    serve: Serve, ask: Ask
) -> None:
    lost = Unavailable("gone")
    pieces = [(started(SEED), audio(at, b"\x01\x00"), lost) for at in range(4)]
    server = serve(in_turn(*pieces, (started(SEED), finished())))
    reply = await ask(server.address, retry=antiphon.Retry(attempts=2, pause_s=0.01))
    assert reply.pcm16 == b"\x01\x00" * 4
    assert len(server.requests) == 5


@both
async def test_a_loss_is_the_answers_when_no_server_goes_on_in_time(serve: Serve, ask: Ask) -> None:
    """One that begins the rest, and is lost again before anything new has come, is no progress."""
    server: Speech = serve(lambda request, server: rest_of(request))

    def rest_of(request: speech_pb2.GenerateRequest) -> Responses:
        if request.HasField("delivered"):
            yield started(SEED)
            yield step(1)
        else:
            yield from BEGUN
        # It says that it will not be back in time, which ends the attempts.
        late = len(server.requests) == losses
        raise Unavailable("gone", retry_after_s=2 * retry.within_s if late else 0.0)

    losses = 2 * antiphon.Retry().attempts
    retry = antiphon.Retry(within_s=GENEROUS_S, pause_s=0.01, longest_pause_s=0.05)
    with pytest.raises(Unavailable, match=rf"gone \(attempts: {losses} in \d+\.\d s\)"):
        await ask(server.address, retry=retry)
    assert len(server.requests) == losses


CALL = Message(
    calls=speech_pb2.FunctionCallDelta(
        calls=[functions_pb2.FunctionCall(id="call_1", name="now", arguments="{}")]
    )
)
UNSEEDED = (started(), text("Hel"))


@both
@pytest.mark.parametrize(
    ("begun", "error"),
    [
        pytest.param((*BEGUN, CALL), Unavailable("gone"), id="has_called"),
        pytest.param(UNSEEDED, Unavailable("gone"), id="no_seed"),
        pytest.param(BEGUN, told(Unavailable("lost", stage="talker")), id="a_stage"),
        pytest.param(BEGUN, told(DataLoss("the generated answer differs")), id="another_error"),
        pytest.param((*BEGUN, finished()), Unavailable("gone"), id="finished"),
    ],
)
async def test_an_answer_is_not_continued_when_it_cannot_be(
    serve: Serve, ask: Ask, begun: Sequence[Message], error: Message | AntiphonError
) -> None:
    server = serve(in_turn((*begun, error), REST))
    with pytest.raises(AntiphonError):
        await ask(server.address, retry=SOON)
    assert len(server.requests) == 1


@both
@pytest.mark.parametrize(
    "rest",
    [
        pytest.param((started(SEED, model="other"), finished()), id="model"),
        pytest.param((started(SEED), audio(0, b"\x01\x00"), finished()), id="from_its_beginning"),
    ],
)
async def test_another_answer_is_no_continuation(
    serve: Serve, ask: Ask, rest: Sequence[Message]
) -> None:
    server = serve(in_turn((*BEGUN, Unavailable("gone")), rest))
    with pytest.raises(DataLoss):
        await ask(server.address, retry=SOON)
