"""What an end of a stream keeps, confirms and sends again."""

from __future__ import annotations

import pytest

from antiphon.errors import DataLoss
from antiphon.transport import numbered_stream
from antiphon.transport.numbered_stream import CONFIRMED_BYTES, CONFIRMED_MESSAGES, NumberedStream


def sending(*messages: str, kept_bytes: int = 100) -> NumberedStream[str]:
    stream: NumberedStream[str] = NumberedStream(kept_bytes)
    for message in messages:
        stream.sent(message, len(message))
    return stream


def sent_again(stream: NumberedStream[str]) -> list[str]:
    return list(iter(stream.again, None))


def test_what_is_not_confirmed_is_sent_again_once_and_in_order() -> None:
    stream = sending("a", "b", "c", "d")
    stream.confirmed(1)
    stream.confirmed(1)
    assert stream.again() is None
    stream.rewind(2)
    assert sent_again(stream) == ["c", "d"]
    stream.sent("e", 1)
    stream.rewind(2)
    assert stream.again() == "c"
    stream.rewind(3)
    assert sent_again(stream) == ["d", "e"]


@pytest.mark.parametrize("count", [1, 5])
def test_count_that_does_not_fit_is_data_loss(count: int) -> None:
    stream = sending("a", "b", "c", "d")
    stream.confirmed(2)
    with pytest.raises(DataLoss):
        stream.rewind(count)


def test_message_is_not_confirmed_before_it_was_sent() -> None:
    stream = sending("a", "b")
    with pytest.raises(DataLoss, match="3 messages were confirmed, 2 were sent"):
        stream.confirmed(3)
    stream.rewind(0)
    with pytest.raises(DataLoss):
        stream.confirmed(1)
    assert stream.again() == "a"
    stream.confirmed(1)


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = sending("abc", kept_bytes=5)
    assert not stream.is_full
    stream.sent("de", 2)
    assert stream.is_full
    stream.confirmed(1)
    assert not stream.is_full
    monkeypatch.setattr(numbered_stream, "KEPT_MESSAGES", 2)
    stream.sent("", 0)
    assert stream.is_full
    stream.rewind(2)
    assert not stream.is_full


@pytest.mark.parametrize(
    ("messages", "size_bytes"), [(CONFIRMED_MESSAGES, 0), (2, CONFIRMED_BYTES // 2)]
)
def test_count_is_owed_after_many_messages_or_bytes(messages: int, size_bytes: int) -> None:
    stream = sending()
    for _ in range(messages):
        assert not stream.owes_count
        stream.arrived(size_bytes)
    assert stream.owes_count
    assert stream.count() == messages
    assert not stream.owes_count
