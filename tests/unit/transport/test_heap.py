from __future__ import annotations

import subprocess
import sys

import pytest

# Counts the page faults of blocks that are taken, touched and freed over and over.
MEASURE = """
import resource, sys
from antiphon.transport.heap import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("not glibc")
def touch():
    block = bytearray(40 << 20)
    block[::4096] = b"1" * len(block[::4096])
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, how], capture_output=True, text=True, check=False
    )
    if "not glibc" in done.stderr:
        pytest.skip("this malloc is not glibc's")
    return int(done.stdout)


def test_freed_blocks_are_used_again_when_memory_is_kept() -> None:
    assert 4 * faults("kept") < faults("as it is")
