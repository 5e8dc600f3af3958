"""What waits for one reader: bounded in bytes and in number, and it always ends."""

from __future__ import annotations

import pytest

from antiphon.errors import ResourceExhausted
from antiphon.runtime.server.outbox import MAX_ITEMS, Outbox


async def taken(outbox: Outbox[str]) -> list[str]:
    return [item async for item in outbox]


async def test_outbox_ends_when_one_item_is_larger_than_the_bound() -> None:
    outbox: Outbox[str] = Outbox(100)
    outbox.put_nowait("opened")
    outbox.put_nowait("all of it", 101)
    outbox.put_nowait("report")
    outbox.end("the end")
    assert await taken(outbox) == ["opened", "all of it", "report", "the end"]


async def test_outbox_refuses_what_exceeds_the_bound_and_names_the_setting() -> None:
    outbox: Outbox[str] = Outbox(100)
    outbox.put_nowait("first", 60)
    outbox.put_nowait("second", 40)
    with pytest.raises(ResourceExhausted, match="outbox_bytes"):
        outbox.put_nowait("third", 1)
    outbox.end("the end")
    assert await taken(outbox) == ["first", "second", "the end"]


async def test_outbox_takes_as_much_again_when_it_was_read() -> None:
    outbox: Outbox[str] = Outbox(100)
    reader = aiter(outbox)
    for _ in range(3):
        outbox.put_nowait("large", 90)
        assert await anext(reader) == "large"


async def test_outbox_refuses_items_without_bytes_when_there_are_too_many() -> None:
    outbox: Outbox[str] = Outbox(100)
    for _ in range(MAX_ITEMS):
        outbox.put_nowait("bare")
    with pytest.raises(ResourceExhausted, match=str(MAX_ITEMS)):
        outbox.put_nowait("bare")
    outbox.end("the end")
    assert len(await taken(outbox)) == MAX_ITEMS + 1


async def test_outbox_takes_nothing_after_its_end() -> None:
    outbox: Outbox[str] = Outbox(100)
    outbox.end("the end")
    outbox.put_nowait("late", 1)
    outbox.end("again")
    assert await taken(outbox) == ["the end"]


async def test_outbox_replaces_the_newest_item_of_a_type() -> None:
    outbox: Outbox[str | int] = Outbox(100)
    for item in (1, 2):
        outbox.put_latest(item)
    outbox.put_nowait("between", 90)
    for item in (3, 4, 5):
        outbox.put_latest(item)
    outbox.end("the end")
    outbox.put_latest(6)
    assert await taken(outbox) == [2, "between", 5, "the end"]
