"""A conversation whose server is lost between an event and the token that counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import antiphon
from antiphon.errors import Unavailable
from antiphon.v1 import converse_pb2
from tests.unit.client.speech_server import Speech, greeting
from tests.unit.client.twins import talk_through_async, talk_through_blocking

Serve = Callable[..., Speech]
Requests = Iterator[converse_pb2.ConverseRequest]
Response = converse_pb2.ConverseResponse
Responses = Iterator[Response]
IN_PROGRESS = converse_pb2.RESPONSE_STATUS_IN_PROGRESS
both = pytest.mark.parametrize(
    "talk_through", [talk_through_blocking, talk_through_async], ids=["blocking", "async"]
)


def begun() -> Response:
    return Response(begun={"model": "tiny", "sample_rate_hz": 24_000})


def saved(token: bytes, commands: int) -> Response:
    return Response(saved={"token": token, "commands": commands})


def answered(status: int, item_text: str) -> Iterator[Response]:
    """The ends of an item and of its response."""
    item = {"id": "item", "role": "assistant", "contents": [{"text": item_text}]}
    yield Response(response_item_ended={"response_id": "resp", "item": item})
    response = {"id": "resp", "status": status, "items": [item]}
    yield Response(response_ended={"response": response})


@both
async def test_a_response_that_has_ended_does_not_end_again(
    serve: Serve, talk_through: Callable[..., object]
) -> None:
    """The next server takes it for lost, and gets the text that the client has of it."""

    def talk(requests: Requests, server: Speech) -> Responses:
        server.openings.append(next(requests).open)
        yield begun()
        if len(server.openings) > 1:
            yield from answered(converse_pb2.RESPONSE_STATUS_FAILED, "Hello")
            yield saved(b"second", 0)
            assert next(requests).HasField("create_item")
            yield Response(item_added={"item": {"id": "new", "role": "user"}})
            return
        yield saved(b"first", 0)
        assert next(requests).HasField("create_response")
        yield Response(response_created={"response": {"id": "resp", "status": IN_PROGRESS}})
        yield Response(response_item_begun={"response_id": "resp", "item_id": "item"})
        yield saved(b"pending", 1)
        delta = {"response_id": "resp", "item_id": "item"}
        yield Response(response_text={**delta, "text": "Hello"})
        yield Response(response_audio={**delta, "pcm16": bytes(2 * 2400)})
        yield from answered(converse_pb2.RESPONSE_STATUS_COMPLETED, "Hello")
        raise Unavailable("lost")

    server = serve(greeting)
    server.talk = talk
    done = 0

    def events(event: antiphon.TalkEvent) -> list[str]:
        nonlocal done
        match event:
            case antiphon.ConversationOpened():
                return ["add"] if done else ["respond"]
            case antiphon.ResponseDone(response):
                done += 1
                assert response.status == "completed"
            case antiphon.ItemCreated():
                return ["finish"]
        return []

    await talk_through(server.address, events)
    assert done == 1
    first, second = server.openings
    assert not first.HasField("resumed")
    assert second.resumed.token == b"pending"
    (delivered,) = second.resumed.delivered
    assert (delivered.item_id, delivered.text) == ("item", "Hello")
    assert delivered.audio_s == pytest.approx(0.1)


@both
async def test_a_conversation_whose_first_token_was_lost_begins_again(
    serve: Serve, talk_through: Callable[..., object]
) -> None:
    def talk(requests: Requests, server: Speech) -> Responses:
        server.openings.append(next(requests).open)
        yield begun()
        command = next(requests)
        assert command.HasField("create_response"), command
        if len(server.openings) == 1:
            raise Unavailable("lost")
        yield from answered(converse_pb2.RESPONSE_STATUS_COMPLETED, "Hello")

    server = serve(greeting)
    server.talk = talk
    opened = 0

    def events(event: antiphon.TalkEvent) -> list[str]:
        nonlocal opened
        match event:
            case antiphon.ConversationOpened():
                opened += 1
                return ["respond"] if opened == 1 else []
            case antiphon.ResponseDone():
                return ["finish"]
        return []

    await talk_through(server.address, events)
    assert opened == 2
    first, second = server.openings
    assert first == second


@both
async def test_a_server_that_ends_the_call_without_a_word_is_tried_again(
    serve: Serve, talk_through: Callable[..., object]
) -> None:
    def talk(requests: Requests, server: Speech) -> Responses:
        server.openings.append(next(requests).open)
        if len(server.openings) > 1:
            yield begun()

    server = serve(greeting)
    server.talk = talk
    await talk_through(server.address, lambda event: ["finish"])
    assert len(server.openings) == 2
