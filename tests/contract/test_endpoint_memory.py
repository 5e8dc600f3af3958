from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from antiphon.errors import Internal
from tests.contract.fake_stages import THINKER, Session
from tests.contract.raw_http import chat_body, post, raw_client
from tests.contract.served_gateway import ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

BODY_BYTES = 1 << 19
REQUESTS = 12


@pytest.fixture
def no_collection() -> Iterator[None]:
    """Reference counts alone free what is freed."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()
        gc.enable()


def large(**fields: object) -> bytes:
    words = "w" * BODY_BYTES
    return post(chat_body(messages=[{"role": "user", "content": words}], **fields))


def refused_by_json() -> bytes:
    return post(b"{" + b" " * BODY_BYTES)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("fields", "status"),
    [({}, 200), ({"colour": 1}, 200), ({"model": "other"}, 404), ({"temperature": -1}, 400)],
    ids=["answered", "unknown field", "unknown model", "out of range"],
)
async def test_bodies_are_freed_without_a_collection_when_answered_or_refused(
    served: ServedGateway, no_collection: None, stream: bool, fields: dict[str, object], status: int
) -> None:
    async def ask() -> None:
        async with raw_client(served) as client:
            await client.send(large(**fields, stream=stream))
            assert (await client.reader.readline()).split()[1] == str(status).encode()
            await client.reader.readuntil(b"\r\n\r\n")
        await served.gateway.calls.wait_idle()
        served.fakes.reset()

    await ask()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(REQUESTS):
        await ask()
    after, _ = tracemalloc.get_traced_memory()
    assert after - before < 3 * BODY_BYTES


async def test_bodies_are_freed_without_a_collection_when_they_are_no_json(
    served: ServedGateway, no_collection: None
) -> None:
    async with raw_client(served) as client:
        await client.send(refused_by_json())
        assert (await client.response())[0] == 400
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(REQUESTS):
            await client.send(refused_by_json())
            assert (await client.response())[0] == 400
        after, _ = tracemalloc.get_traced_memory()
    assert after - before < 3 * BODY_BYTES


@pytest.mark.parametrize("leaves", [True, False])
async def test_bodies_are_freed_without_a_collection_when_a_call_is_aborted(
    served: ServedGateway, no_collection: None, leaves: bool
) -> None:
    begun = asyncio.Event()

    async def begin(session: Session) -> None:
        await session.opened()
        await session.text("begun")
        begun.set()
        if leaves:
            await asyncio.Event().wait()
        await session.error(Internal("the engine broke"))

    async def ask() -> None:
        begun.clear()
        async with raw_client(served) as client:
            await client.send(large(stream=True))
            await begun.wait()
            if not leaves:
                await client.reader.readuntil(b"0\r\n\r\n")
        await served.fakes[THINKER].sessions[-1].ended.wait()
        await served.gateway.calls.wait_idle()
        served.fakes.reset()
        served.fakes[THINKER].script = begin

    served.fakes[THINKER].script = begin
    await ask()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(REQUESTS):
        await ask()
    after, _ = tracemalloc.get_traced_memory()
    assert after - before < 3 * BODY_BYTES
