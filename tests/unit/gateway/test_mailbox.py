from __future__ import annotations

import asyncio

import pytest

from antiphon_gateway.sessions.mailbox import EventMailbox


async def settle() -> None:
    """Let every task run until all of them wait."""
    for _ in range(50):
        await asyncio.sleep(0)


async def test_mailbox_keeps_the_order() -> None:
    mailbox: EventMailbox[int] = EventMailbox(3)
    for item in range(3):
        await mailbox.put(item)
    assert [await mailbox.get() for _ in range(3)] == [0, 1, 2]


async def test_mailbox_stops_its_writers_when_it_is_full() -> None:
    mailbox: EventMailbox[int] = EventMailbox(2)
    taken = 0

    async def write() -> None:
        nonlocal taken
        for item in range(10):
            await mailbox.put(item)
            taken += 1

    writers = [asyncio.create_task(write()) for _ in range(2)]
    await settle()
    assert taken == 2
    await mailbox.get()
    await settle()
    assert taken == 3
    for _ in range(19):
        await mailbox.get()
    await asyncio.gather(*writers)
    assert taken == 20


async def test_mailbox_failure_overtakes_items_and_frees_writers() -> None:
    mailbox: EventMailbox[int] = EventMailbox(1)
    await mailbox.put(1)
    writer = asyncio.create_task(mailbox.put(2))
    await settle()
    mailbox.fail(ValueError("first"))
    mailbox.fail(ValueError("second"))
    await writer
    with pytest.raises(ValueError, match="first"):
        await mailbox.get()


async def test_mailbox_failure_wakes_a_waiting_reader() -> None:
    mailbox: EventMailbox[int] = EventMailbox(1)
    reader = asyncio.create_task(mailbox.get())
    await settle()
    mailbox.fail(ValueError("lost"))
    with pytest.raises(ValueError, match="lost"):
        await reader


async def test_mailbox_loses_nothing_when_a_reader_is_cancelled() -> None:
    mailbox: EventMailbox[int] = EventMailbox(1)
    reader = asyncio.create_task(mailbox.get())
    await settle()
    reader.cancel()
    await settle()
    await mailbox.put(7)
    assert await mailbox.get() == 7
