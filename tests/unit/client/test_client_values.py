"""Values of the wrong kind, files, reprs and what the package exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import antiphon
from antiphon.client.checks import MAX_MESSAGE_BYTES
from antiphon.client.request import generate_request
from antiphon.errors import ERROR_BY_CODE, InvalidArgument
from antiphon.version import VERSION

MIB = 1 << 20
User = antiphon.Message.user


@pytest.mark.parametrize("kind", [antiphon.Image, antiphon.Video])
@pytest.mark.parametrize("as_path", [str, Path])
def test_a_file_may_be_named_by_text_or_path(kind: Any, as_path: Any, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"its bytes")
    (part,) = generate_request([User(kind(as_path(path)))]).messages[0].parts
    content = getattr(part, part.WhichOneof("content") or "")
    assert content.file == b"its bytes"


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (5, {}, "messages"),
    (None, {}, "messages"),
    (b"Hi", {}, "messages"),
    (User("Hi"), {}, "messages"),
    ([{"role": "user", "content": "Hi"}], {}, "messages[0]"),
    ([User("Hi"), "Hi"], {}, "messages[1]"),
    ([User(5)], {}, "messages[0].parts[0]"),  # type: ignore[arg-type]
    ([User("a", {"type": "text"})], {}, "messages[0].parts[1]"),  # type: ignore[arg-type]
    ([User(antiphon.Image(5))], {}, "messages[0].parts[0]"),  # type: ignore[arg-type]
    ([User(antiphon.Image("a\0b"))], {}, "messages[0].parts[0]"),
    ([User(antiphon.Image("gone.jpg"))], {}, "messages[0].parts[0]"),
    ([User(antiphon.Image("."))], {}, "messages[0].parts[0]"),
    ([User("\ud800")], {}, "messages[0].parts[0]"),
    ("\ud800", {}, "messages[0].parts[0]"),
    ([antiphon.Message("user", "Hi")], {}, "messages[0].parts"),  # type: ignore[arg-type]
    ([antiphon.Message(5, ("Hi",))], {}, "messages[0].role"),  # type: ignore[arg-type]
    ("Hi", {"model": 5}, "model"),
    ("Hi", {"voice": b"ethan"}, "voice"),
    ("Hi", {"voice": "\ud800"}, "voice"),
    ("Hi", {"modalities": "text"}, "modalities"),
    ("Hi", {"modalities": 5}, "modalities"),
    ("Hi", {"modalities": [5]}, "modalities[0]"),
    ("Hi", {"temperature": "hot"}, "temperature"),
    ("Hi", {"temperature": True}, "temperature"),
    ("Hi", {"temperature": float("nan")}, "temperature"),
    ("Hi", {"temperature": 1e-39}, "temperature"),
    ("Hi", {"top_p": 10**400}, "top_p"),
    ("Hi", {"max_tokens": 1.5}, "max_tokens"),
    ("Hi", {"max_tokens": 10**5000}, "max_tokens"),
    ("Hi", {"seed": "5"}, "seed"),
    ("Hi", {"seed": -(10**400)}, "seed"),
    ("Hi", {"stop": 5}, "stop"),
    ("Hi", {"stop": [5]}, "stop[0]"),
    ("Hi", {"stop": "\ud800"}, "stop"),
    ("Hi", {"top_logprobs": True}, "top_logprobs"),
    ("Hi", {"sampling": antiphon.SamplingRequest()}, "sampling"),
    ("Hi", {"sampling": {5: antiphon.SamplingRequest()}}, "sampling"),
    ("Hi", {"sampling": {"\ud800": antiphon.SamplingRequest()}}, "sampling"),
    ("Hi", {"sampling": {"talker": {"top_k": 5}}}, "sampling.talker"),
    ("Hi", {"sampling": {"": None}}, "sampling"),
    ("Hi", {"options": "style"}, "options"),
    ("Hi", {"options": {5: "waltz"}}, "options"),
    ("Hi", {"options": {"style": "\ud800"}}, "options.style"),
    ("Hi", {"options": {"style": True}}, "options.style"),
    ("Hi", {"options": {"style": None}}, "options.style"),
    ("Hi", {"options": {"tempo": 10**400}}, "options.tempo"),
    ("Hi", {"options": {"sample": Path("gone.wav")}}, "options.sample"),
    ("Hi", {"delivery": "whole"}, "delivery"),
    ("Hi", {"chunk_policy": (1, (), 2)}, "chunk_policy"),
    ("Hi", {"chunk_policy": antiphon.ChunkPolicy(1, 5, 2)}, "chunk_policy"),  # type: ignore[arg-type]
    ("Hi", {"chunk_policy": antiphon.ChunkPolicy(1, (), 10**400)}, "chunk_policy"),
    ("Hi", {"chunk_policy": antiphon.ChunkPolicy(0, (), 1)}, "chunk_policy"),
    ("Hi", {"include_ids": "yes"}, "include_ids"),
]


def case_name(value: Any) -> str:
    return repr(value)[:40] if not isinstance(value, dict) or "max_tokens" not in value else "huge"


@pytest.mark.parametrize(("messages", "options", "field"), WRONG, ids=case_name)
def test_request_is_refused_naming_the_field_when_a_value_is_of_another_kind(
    messages: Any, options: dict[str, Any], field: str
) -> None:
    with pytest.raises(InvalidArgument) as caught:
        generate_request(messages, **options)
    assert caught.value.field == field
    assert caught.value.message.startswith(field)
    assert len(caught.value.message) < 1000


def test_request_is_refused_before_it_reads_a_file_that_cannot_be_sent(tmp_path: Path) -> None:
    path = tmp_path / "endless.mp4"
    with path.open("wb") as file:
        file.truncate(MAX_MESSAGE_BYTES + 1)
    with pytest.raises(InvalidArgument, match="the maximum is"):
        generate_request([User(antiphon.Video(path))])


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 10**400, "5", None, True])
def test_clients_refuse_a_timeout_that_is_none(timeout_s: Any) -> None:
    with antiphon.Client("127.0.0.1:1") as client:
        with pytest.raises(InvalidArgument, match="timeout_s"):
            client.generate("Hi", timeout_s=timeout_s)
        with pytest.raises(InvalidArgument, match="timeout_s"):
            client.server_info(timeout_s=timeout_s)


@pytest.mark.parametrize("address", [5, None, "", " ", b"localhost:1", "\ud800"])
def test_clients_refuse_an_address_that_is_none(address: Any) -> None:
    for kind in (antiphon.Client, antiphon.AsyncClient):
        with pytest.raises(InvalidArgument, match="address"):
            kind(address)


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("http://localhost:8000", "'localhost:50050'"),
        ("HTTP://localhost:8000/v1", "'localhost:50050'"),
        ("https://speech.example/v1", "'speech.example:50050' and tls=True"),
        ("wss://speech.example", "'speech.example:50050' and tls=True"),
        ("grpc://localhost:50050", "'localhost:50050'"),
        ("localhost:99999", "from 1 to 65535"),
        ("localhost:0", "from 1 to 65535"),
        ("localhost:", "from 1 to 65535"),
        ("localhost:http", "from 1 to 65535"),
        ("localhost:50050/v1", "HOST:PORT"),
        ("one:two:3", "HOST:PORT"),
        ("[::1", "HOST:PORT"),
    ],
)
def test_clients_refuse_an_address_of_another_form_with_a_remedy(address: str, remedy: str) -> None:
    for kind in (antiphon.Client, antiphon.AsyncClient, antiphon.StageClient):
        with pytest.raises(InvalidArgument, match="address") as refused:
            kind(address)
        assert remedy in refused.value.message


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        " localhost:50050 ",
        "my_gateway:50050",
        "::1",
        "[::1]",
        "[::1]:50050",
        "dns:///localhost:1",
        "dns://127.0.0.1:53/localhost:1",
        "ipv4:10.0.0.1:1,10.0.0.2:2",
        "ipv6:[::1]:1",
        "unix:/run/antiphon",
        "unix:///run/antiphon",
        "unix-abstract:antiphon",
        "dns:50050",
    ],
)
def test_clients_take_every_form_of_address_that_grpc_has(address: str) -> None:
    antiphon.Client(address).close()


REPLY = antiphon.Reply(
    "t" * MIB, bytes(MIB), 24_000, antiphon.FinishReason.STOP, antiphon.Usage(), {}
)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (antiphon.Image(bytes(MIB)), f"Image(file=<{MIB} bytes>)"),
        (antiphon.Image("cat.jpg"), "Image(file='cat.jpg')"),
        (antiphon.Video(bytes(MIB)), f"Video(file=<{MIB} bytes>)"),
        (User("Hi", bytes(MIB)), f"Message(role='user', parts=('Hi', <{MIB} bytes>))"),
        (User(*"abcdef"), "Message(role='user', parts=('a', 'b', 'c', 'd', <2 more>))"),
        (User("t" * MIB), "Message(role='user', parts=('ttt"),
        (User(antiphon.Image(bytes(MIB))),
         f"Message(role='user', parts=(Image(file=<{MIB} bytes>)))"),
        (antiphon.AudioDelta(bytes(MIB), 3, codes=b"ab"),
         f"AudioDelta(pcm16=<{MIB} bytes>, first_sample=3, float32=b'', codes=b'ab')"),
        (antiphon.TextDelta("Hi", tuple(range(99_999))),
         "TextDelta(text='Hi', token_ids=(0, 1, 2, 3, <99995 more>), logprobs=())"),
        (REPLY, "Reply(text='ttt"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_a_repr_is_short_whatever_it_holds(value: object, told: str) -> None:
    shown = repr(value)
    assert shown.startswith(told.rstrip(")")), shown
    assert len(shown) < 700


def test_package_has_all_errors_and_its_version() -> None:
    for kind in ERROR_BY_CODE.values():
        assert getattr(antiphon, kind.__name__) is kind
        assert kind.__name__ in antiphon.__all__
    assert antiphon.ErrorCode.INTERNAL is antiphon.Internal.code
    assert antiphon.__version__ == VERSION
