"""Messages to clients that may be slow."""

from __future__ import annotations

import asyncio

import pytest

from antiphon_gateway.endpoints.sending import ClientStalled, send_in_time


async def test_a_message_that_is_sent_without_a_wait_sets_no_timer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = []

    async def send() -> None:
        sent.append("message")

    loop = asyncio.get_running_loop()
    timers = []
    monkeypatch.setattr(loop, "call_at", lambda *given, **_: timers.append(given))
    await send_in_time(send(), 120.0)
    monkeypatch.undo()
    assert sent == ["message"]
    assert not timers


async def test_a_client_that_reads_nothing_is_stalled() -> None:
    never = asyncio.Event()

    async def send() -> None:
        await never.wait()

    with pytest.raises(ClientStalled):
        await send_in_time(send(), 0.0)


async def test_a_cancelled_send_is_no_stalled_client() -> None:
    never, waits = asyncio.Event(), asyncio.Event()

    async def send() -> None:
        waits.set()
        await never.wait()

    task = asyncio.create_task(send_in_time(send(), 120.0))
    await waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
