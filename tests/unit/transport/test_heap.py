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


# Says how many objects are looked at, before and after, and whether a circle is still freed.
LEAVE_OUT = """
import gc, weakref
from antiphon.transport.heap import leave_out_startup
before = len(gc.get_objects())
leave_out_startup()
after = len(gc.get_objects())
class Circle:
    pass
circle = Circle()
circle.itself = circle
freed = weakref.ref(circle)
del circle
gc.collect()
print(before, after, freed() is None)
"""


def test_what_was_there_at_the_start_is_not_looked_at_again_and_circles_are_still_freed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVE_OUT], capture_output=True, text=True, check=True
    )
    before, after, freed = done.stdout.split()
    assert 10 * int(after) < int(before)
    assert freed == "True"
