"""What a transport must do if the process at the other end is killed. This is the second half of
the public conformance suite. Each check kills one peer at a random moment.

As in a real stage, both ends load everything that their transport needs before they link.
"""

from __future__ import annotations

import asyncio
import random
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress

from antiphon.deployment.stage_config import TransportName
from antiphon.errors import ResourceExhausted
from antiphon.transport.channel import KEEPALIVE_TIME_MS, PING_TIMEOUT_MS
from antiphon.transport.payload.registry import attach_best, check_possible
from antiphon_testkit.check_transport import check_nothing_is_left
from antiphon_testkit.link_peer import RESUME_WINDOW_S, settings_of
from antiphon_testkit.link_rig import LinkConsumer, marked_chunk, producer, serving

# The loss should be noticed immediately. This limit leaves time for a busy machine, but is shorter
# than the time after which an unanswered ping would reveal the loss.
NOTICED_S = (KEEPALIVE_TIME_MS + PING_TIMEOUT_MS) / 1000
START_S = 120.0


async def check_killed_producer(transport: TransportName, seed: int, *, ring: bool = True) -> None:
    """The consumer receives a contiguous prefix, notices the loss without a ping, and releases all
    resources.
    """
    settings = settings_of(transport, ring=ring)
    check_possible(settings)
    consumer = LinkConsumer(settings, attach_best, boot_id="survivor")
    received = consumer.received
    async with serving(consumer) as address:
        where = ("--produce-to", address, "--seed", str(seed))
        peer = await _start("--transport", transport, *_ring(ring), *where)
        try:
            await received.wait_count(random.Random(seed).randrange(1, 600), START_S)
        finally:
            await _kill(peer)
        await received.changed.wait_until(lambda: received.suspended, NOTICED_S)
        await received.changed.wait_until(lambda: received.lost, RESUME_WINDOW_S + START_S)
        for session_id, sequences in received.sequences.items():
            received.check_complete(session_id, len(sequences))
    await check_nothing_is_left()


async def check_killed_consumer(transport: TransportName, seed: int, *, ring: bool = True) -> None:
    """The producer notices the loss without a ping, gives up on the link after the resume window,
    and releases all resources.
    """
    settings = settings_of(transport, ring=ring)
    check_possible(settings)
    peer = await _start("--transport", transport, *_ring(ring))
    try:
        assert peer.stdout is not None
        address = (await peer.stdout.readline()).decode().strip()
        link, told = producer(address, settings)
        chance = random.Random(seed)
        kill_at, sequence = chance.randrange(1, 500), 0
        while not told.suspended:
            if sequence == kill_at:
                await _kill(peer)
                killed_at = asyncio.get_running_loop().time()
            with suppress(ResourceExhausted):
                link.send_nowait(marked_chunk("s", sequence, int((1 << 20) ** chance.random())))
            sequence += 1
            await asyncio.sleep(0.001)
        assert asyncio.get_running_loop().time() - killed_at < NOTICED_S
        await told.changed.wait_until(lambda: told.lost, RESUME_WINDOW_S + START_S)
        await link.close()
    finally:
        await _kill(peer)
    await check_nothing_is_left()


async def _kill(peer: Process) -> None:
    """Kill a peer unless it has already ended by itself, because an error here would hide why a
    check failed.
    """
    with suppress(ProcessLookupError):
        peer.kill()
    await peer.wait()


def _ring(ring: bool) -> list[str]:
    return [] if ring else ["--no-ring"]


async def _start(*arguments: str) -> Process:
    module = "antiphon_testkit.link_peer"
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=PIPE
    )
