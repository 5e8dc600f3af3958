"""Clients that mean harm: each attacks over and over until it is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

from tests.contract.raw_http import RawClient, chat_body, connect, post

SMALL_BUFFER = 1 << 12
LONG_TEXT = "hello " * (1 << 17)
PATIENCE_S = 5.0
"""How long an attacker stays on a connection; then it takes the next one."""
PAUSE_S = 0.1
"""Between two attacks of one attacker: they share the machine with those whom they attack."""

Attack = Callable[[RawClient, bytes], Awaitable[None]]


async def read_nothing(client: RawClient, ask: bytes) -> None:
    """Ask twice, read nothing."""
    client.writer.transport.pause_reading()  # type: ignore[attr-defined]
    await client.send(2 * ask)
    await asyncio.Event().wait()


async def send_long_text(client: RawClient, ask: bytes) -> None:
    """Ask with a text that no context holds."""
    await client.send(post(chat_body(messages=[{"role": "user", "content": LONG_TEXT}])))
    await client.wait_cut()


async def send_half_a_body(client: RawClient, ask: bytes) -> None:
    """Announce a large body and send half of it."""
    await client.send(post(b" " * (4 << 20), length=8 << 20))
    await client.wait_cut()


async def send_small_values(client: RawClient, ask: bytes) -> None:
    """Send a body that takes far more memory once it is decoded."""
    await client.send(post(b'{"metadata":[' + b"[]," * (1 << 20) + b"[]]}"))
    await client.wait_cut()


async def send_endless_headers(client: RawClient, ask: bytes) -> None:
    """Send headers for as long as they are taken."""
    await client.send(b"GET /health HTTP/1.1\r\n")
    for _ in range(1000):
        await client.send(b"x: " + b"y" * (1 << 16) + b"\r\n")


async def say_nothing(client: RawClient, ask: bytes) -> None:
    """Connect, and that is all."""
    await client.wait_cut()


async def ask_twice_and_leave(client: RawClient, ask: bytes) -> None:
    """Pipeline two requests, and go when the answer begins."""
    await client.send(2 * ask)
    await client.reader.read(1)


ATTACKS: Sequence[tuple[Attack, int]] = (
    (read_nothing, 8),
    (send_long_text, 4),
    (send_half_a_body, 6),
    (send_small_values, 2),
    (send_endless_headers, 4),
    (say_nothing, 4),
    (ask_twice_and_leave, 4),
)


@asynccontextmanager
async def attacked(address: str, stream: bytes, whole: bytes) -> AsyncIterator[list[int]]:
    """32 attackers at once, for as long as the context is open; how often each has attacked.

    `stream` and `whole` are the requests of those who ask for something.
    """
    attacks = [attack for attack, many in ATTACKS for _ in range(many)]
    counts = [0] * len(attacks)

    async def go_on(index: int) -> None:
        while True:
            counts[index] += 1
            ask = (stream, whole)[counts[index] % 2]
            with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(PATIENCE_S), connect(address, SMALL_BUFFER) as client:
                    await attacks[index](client, ask)
            await asyncio.sleep(PAUSE_S)

    attackers = [asyncio.create_task(go_on(index)) for index in range(len(attacks))]
    try:
        yield counts
    finally:
        for attacker in attackers:
            attacker.cancel()
        await asyncio.gather(*attackers, return_exceptions=True)


async def hear(address: str, ask: bytes) -> tuple[float, bytes]:
    """An honest client: seconds to the first audio of a streamed answer, and all of it."""
    clock = asyncio.get_running_loop().time
    async with connect(address, 0) as client:
        asked_at = clock()
        await client.send(ask)
        heard, first_s = b"", 0.0
        while not heard.endswith(b"0\r\n\r\n") and (part := await client.reader.read(1 << 16)):
            heard += part
            if not first_s and b'"data":' in heard:
                first_s = clock() - asked_at
        return first_s, heard


async def hear_many(address: str, ask: bytes, clients: int, answers: int) -> list[float]:
    """Honest clients, one answer after the other; the times to first audio.

    Raises `AssertionError` when an answer is not complete.
    """

    async def one() -> list[float]:
        times = []
        for _ in range(answers):
            first_s, heard = await hear(address, ask)
            assert b"data: [DONE]" in heard, heard[:1000]
            assert first_s, heard[:1000]
            times.append(first_s)
        return times

    heard = await asyncio.gather(*(one() for _ in range(clients)))
    return sorted(each for times in heard for each in times)
