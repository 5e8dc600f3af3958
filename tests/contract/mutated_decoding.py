"""Decodes mutations of a file in a process of its own.

`ru_maxrss` of a process includes what its parent used when it was started, and RUSAGE_CHILDREN
includes every earlier child. In this process both are small, so the numbers are those of the
decode server and its children, whatever else the test process has run.
"""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from random import Random

import numpy as np

from antiphon_gateway.media.decoding.bounds import RejectedRecording
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.decoding.processes import LANES, MEMORY_BYTES

MOST_S = 2.0
RATE_HZ = 16_000
CASES = 60
# Their headers are read by the gateway itself, which may refuse all mutations.
READ_HERE = ("wav", "wav-float", "rf64")
EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)


def mutated(data: bytes, random: Random, head: int) -> bytes:
    """The file with one to four numbers of its first `head` bytes replaced; sometimes cut short."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 4)):
        width = random.choice((1, 2, 4))
        at = random.randrange(min(head, len(changed) - 8))
        order = random.choice(("little", "big"))
        number = random.choice((*EXTREMES, random.getrandbits(32))) & (1 << 8 * width) - 1
        changed[at : at + width] = number.to_bytes(width, order)
    if random.random() < 0.2:
        del changed[random.randrange(1, len(changed)) :]
    return bytes(changed)


async def decode_mutations(data: bytes, seed: str) -> None:
    """Decode mutations of a file, each of which ends within the bounds, and then the file."""
    random = Random(seed)
    refusals: list[str] = []
    decoder = MediaDecoder(2)
    try:
        for case in range(CASES):
            given = mutated(data, random, random.choice((64, 512, len(data))))
            try:
                samples = await decoder.decode(given, RATE_HZ, MOST_S, "")
            except RejectedRecording as error:
                refusals.append(str(error))
                continue
            assert 0 < len(samples) <= MOST_S * RATE_HZ, (seed, case, len(samples))
            assert np.isfinite(samples).all(), (seed, case)
        assert not [each for each in refusals if "CPU time" in each], refusals
        assert len(await decoder.decode(data, RATE_HZ, MOST_S, "")) > 0
        assert decoder.processes.running == 0
    finally:
        await decoder.close()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert used.ru_utime < LANES[-1].cpu_s, used
    assert used.ru_maxrss << 10 <= MEMORY_BYTES, used
    assert used.ru_maxrss or seed.split()[0] in READ_HERE, used


def check(data: bytes, seed: str) -> None:
    """Run `decode_mutations` in a new process. Fails with its traceback."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__, seed],
        input=data,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")


if __name__ == "__main__":
    asyncio.run(decode_mutations(sys.stdin.buffer.read(), sys.argv[1]))
