"""Both clients, the asyncio and the blocking one, play random scripts and keep one law."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest

from antiphon.client.calls import now
from antiphon.errors import AntiphonError
from tests.own_records import records_of
from tests.unit.client.call_scripts import End, Script, Step, check, random_script
from tests.unit.client.script_players import Player, TaskTwin, ThreadTwin
from tests.unit.client.script_sessions import SURFACES
from tests.unit.client.scripted_server import BOUND_S, ScriptedServer

SEEDS = range(40)
surfaces = pytest.mark.parametrize("surface", SURFACES)


@pytest.fixture(autouse=True)
def no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Neither gRPC nor asyncio logs a warning, not even when what is left is collected."""
    gc.collect()
    caplog.clear()
    yield
    gc.collect()
    warned = [
        each
        for name in ("grpc", "asyncio")
        for each in records_of(caplog, name)
        if each.levelno >= logging.WARNING
    ]
    assert not warned, warned


async def _no_tasks_left() -> None:
    """All other tasks end by themselves."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        _, left = await asyncio.wait(others, timeout=BOUND_S)
        assert not left, f"tasks are left: {left}"


async def play_async(surface: str, script: Script) -> None:
    """Play a script with the asyncio client."""
    scripted, opens = SURFACES[surface]
    server = ScriptedServer(scripted, script)
    try:
        session = opens(server.address, blocking=False)
        outcome = await Player(script, server, session, TaskTwin()).play()
        check(script, outcome, completes_failures=scripted.last_words is not None)
        await _no_tasks_left()
        await session.close_client()
        await _no_tasks_left()
    finally:
        await asyncio.to_thread(server.stop)


def play_blocking(surface: str, script: Script) -> None:
    """Play a script with the blocking client."""
    before = {*threading.enumerate()}
    scripted, opens = SURFACES[surface]
    server = ScriptedServer(scripted, script)
    try:
        session = opens(server.address, blocking=True)
        outcome = now(Player(script, server, session, ThreadTwin()).play())
        check(script, outcome, completes_failures=scripted.last_words is not None)
        now(session.close_client())
    finally:
        server.stop()
    for thread in {*threading.enumerate()} - before:
        # A thread of a library in C, which Python has only seen, can't be joined.
        if isinstance(thread, threading._DummyThread):
            continue
        thread.join(BOUND_S)
        assert not thread.is_alive(), f"a thread is left: {thread}"


@pytest.mark.parametrize("leaving", ["cancel", "close", "cancel while reading"])
@pytest.mark.parametrize("end", [End.OK, End.TYPED, End.CUT], ids=lambda end: end.name)
async def test_asyncio_call_that_cannot_be_written_to_is_freed_unread(
    end: End, leaving: str
) -> None:
    scripted, opens = SURFACES["exchange"]
    server = ScriptedServer(scripted, Script(0, (Step.SEND,) * 3, end, (), ()))
    try:
        session = opens(server.address, blocking=False)
        await session.open()
        assert await asyncio.to_thread(server.ended.wait, BOUND_S)
        # When the server has answered another call, its end has arrived, and the write has failed.
        for _ in range(2):
            with suppress(AntiphonError):
                await session.round_trip()
            with suppress(AntiphonError):
                await session.write(0)
        if leaving == "cancel while reading":
            reader = asyncio.create_task(session.read())
            await asyncio.sleep(0)
            reader.cancel()
            await asyncio.wait([reader])
        if leaving != "close":
            session.cancel()
            await _no_tasks_left()
        await session.close_client()
        await _no_tasks_left()
    finally:
        await asyncio.to_thread(server.stop)


@surfaces
async def test_asyncio_client_keeps_the_law_in_random_scripts(surface: str) -> None:
    for seed in SEEDS:
        script = random_script(seed, writes=SURFACES[surface][0].writes, tasks=True)
        try:
            await play_async(surface, script)
        except BaseException as error:
            error.add_note(str(script))
            raise


@surfaces
def test_blocking_client_keeps_the_law_in_random_scripts(surface: str) -> None:
    for seed in SEEDS:
        script = random_script(seed, writes=SURFACES[surface][0].writes, tasks=False)
        try:
            play_blocking(surface, script)
        except BaseException as error:
            error.add_note(str(script))
            raise
