"""One end of a link as a process of its own: `python -m antiphon_testkit.link_peer`.

A consumer prints its address and takes chunks until it is killed. A producer sends
marked chunks of random sizes to an address until it is killed, or as many rounds as
it is told; then, or when the link is lost, it prints what became of the link.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Sequence

from antiphon.deployment.stage_config import TransportName
from antiphon.errors import ResourceExhausted
from antiphon.transport.payload.registry import attach_best, check_possible
from antiphon.transport.settings import LinkSettings
from antiphon_testkit.link_rig import LinkConsumer, marked_chunk, producer, serving

SESSIONS = 4
LARGEST_BYTES = 1 << 20
SESSION_BYTES = 8 << 20
RESUME_WINDOW_S = 1.0


def settings_of(transport: TransportName, *, ring: bool = True) -> LinkSettings:
    """Return the settings of a peer, which have short windows."""
    return LinkSettings(
        transport,
        "cpu",
        slab_bytes=16 << 20,
        resume_window_s=RESUME_WINDOW_S,
        session_bytes=SESSION_BYTES,
        ring=ring,
    )


async def consume(settings: LinkSettings, host: str) -> None:
    """Receive chunks until the process is killed."""
    consumer = LinkConsumer(settings, attach_best, boot_id="peer")
    async with serving(consumer, host) as address:
        print(address, flush=True)
        await asyncio.Event().wait()


async def produce(settings: LinkSettings, address: str, seed: int, rounds: int) -> None:
    """Send chunks until the process is killed, the link is lost, or all `rounds` are complete. If
    `rounds` is 0, there is no limit.
    """
    chance = random.Random(seed)
    link, told = producer(address, settings)
    sequence = 0
    while not told.lost and (not rounds or sequence < rounds):
        size = int(LARGEST_BYTES ** chance.random())
        for session in range(SESSIONS):
            chunk = marked_chunk(f"session-{session}", sequence, size)
            while not told.lost:
                try:
                    link.send_nowait(chunk)
                    break
                except ResourceExhausted:
                    await asyncio.sleep(0.001)
        sequence += 1
        await asyncio.sleep(0)
    await link.close()
    state = link.state
    ending = {
        "transport": state.transport,
        "refused": state.refused,
        "counts": dict(state.counts),
        "lost": [error.message for error in told.lost],
    }
    print(json.dumps(ending), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one end of a link, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--transport", default="auto")
    parser.add_argument("--listen", metavar="HOST", default="127.0.0.1")
    parser.add_argument("--produce-to", metavar="ADDRESS")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-ring", action="store_true")
    arguments = parser.parse_args(argv)
    settings = settings_of(arguments.transport, ring=not arguments.no_ring)
    check_possible(settings)
    if arguments.produce_to:
        asyncio.run(produce(settings, arguments.produce_to, arguments.seed, arguments.rounds))
    else:
        asyncio.run(consume(settings, arguments.listen))
    return 0


if __name__ == "__main__":
    sys.exit(main())
