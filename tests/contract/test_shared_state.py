"""What two gateways of one host know of each other's requests."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import openai
import pytest
import websockets

from antiphon_gateway.keys import keyring
from antiphon_gateway.keys.key_file import new_key
from antiphon_gateway.keys.key_use import KeyUse
from tests.contract.fake_stages import THINKER, USUAL
from tests.contract.paused_thinker import Pause
from tests.contract.realtime_client import realtime
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway, serve_gateway
from tests.contract.test_api_keys import entry, with_key, write

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG_S = 240.0
SAID = "Hello wörld!"


@pytest.fixture
def in_one_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the limits of keys, no time passes."""
    monkeypatch.setattr(keyring, "KeyUse", partial(KeyUse, clock=lambda: 1000.0))


@asynccontextmanager
async def both(
    path: Path, *, shared: bool = True, **limits: int
) -> AsyncIterator[tuple[ServedGateway, ServedGateway]]:
    """Two gateways with one key."""
    key = new_key()
    write(path / "keys", entry("app", key, **limits))
    settings: dict[str, Any] = {"keys_file": str(path / "keys")}
    if shared:
        settings["sharing_directory"] = str(path)
    async with (
        asyncio.timeout(LONG_S),
        serve_gateway(**settings) as first,
        serve_gateway(**settings) as second,
    ):
        for each in (first, second):
            with_key(each, key)
        yield first, second


def database_in(path: Path) -> sqlite3.Connection:
    """The database that the gateways share."""
    (database,) = path.glob("*.sqlite")
    return sqlite3.connect(database, isolation_level=None)


async def test_key_has_its_requests_at_a_time_once_and_not_at_each_gateway(tmp_path: Path) -> None:
    async with both(tmp_path, concurrency=1) as (first, second):
        first.fakes[THINKER].script = pause = Pause()
        asked = asyncio.create_task(first.chat())
        await pause.begun.wait()
        refused = await second.chat()
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "key_concurrency"
        first.fakes[THINKER].script = USUAL[THINKER]
        pause.go_on.set()
        assert (await asked).status_code == 200
        assert (await second.chat()).status_code == 200


@pytest.mark.usefixtures("in_one_second")
async def test_key_has_its_requests_per_minute_once(tmp_path: Path) -> None:
    async with both(tmp_path, requests_per_minute=2) as (first, second):
        assert (await first.chat()).status_code == 200
        assert (await second.chat()).status_code == 200
        for each in (first, second):
            refused = await each.chat()
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "key_requests_per_minute"
            assert int(refused.headers["retry-after"]) > 0


@contextmanager
def counting_recoveries(number: int) -> Iterator[asyncio.Event]:
    """The event is set when databases could be used again this many times."""
    recoveries = 0
    recovered = asyncio.Event()

    def note(record: logging.LogRecord) -> bool:
        nonlocal recoveries
        if "the database was locked for" in record.getMessage():
            recoveries += 1
            if recoveries >= number:
                recovered.set()
        return True

    log = logging.getLogger("gateway")
    log.addFilter(note)
    try:
        yield recovered
    finally:
        log.removeFilter(note)


@pytest.mark.usefixtures("in_one_second")
async def test_key_has_its_limits_at_each_gateway_while_the_database_is_locked(
    tmp_path: Path,
) -> None:
    with counting_recoveries(2) as recovered:
        async with both(tmp_path, requests_per_minute=2) as gateways:
            with database_in(tmp_path) as suspended:
                suspended.execute("BEGIN IMMEDIATE")
                for each in gateways:
                    assert [(await each.chat()).status_code for _ in range(3)] == [200, 200, 429]
                    assert await each.metric("antiphon_gateway_unshared_key_use_total") >= 3
                suspended.execute("ROLLBACK")
            suspended.close()
            await recovered.wait()
            for each in gateways:
                refused = (await each.chat()).json()["error"]["message"]
                assert "4 in the last minute" in refused


async def test_key_has_its_conversations_once(tmp_path: Path) -> None:
    refused = (websockets.InvalidStatus, openai.APIError)
    async with both(tmp_path, conversations=1) as (first, second):
        async with realtime(first):
            with pytest.raises(refused, match="429"):
                async with realtime(second):
                    pass
        # The first gateway may still be ending the conversation.
        begun = False
        while not begun:
            try:
                async with realtime(second):
                    begun = True
            except refused as error:
                if "429" not in str(error):
                    raise


@pytest.mark.parametrize("shared", [True, False])
async def test_chat_refers_to_what_another_gateway_has_said(tmp_path: Path, shared: bool) -> None:
    async with both(tmp_path, shared=shared) as (first, second):
        answer = await first.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, **SPOKEN
        )
        audio = answer.choices[0].message.audio
        assert audio is not None
        assert audio.transcript == SAID
        messages = [
            *MESSAGES,
            {"role": "assistant", "audio": {"id": audio.id}},
            {"role": "user", "content": "And then?"},
        ]
        assert (await second.chat(messages=messages)).status_code == (200 if shared else 400)
