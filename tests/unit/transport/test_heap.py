from __future__ import annotations

import resource
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


def faults(how: str, program: str = MEASURE) -> int:
    done = subprocess.run(
        [sys.executable, "-c", program, how], capture_output=True, text=True, check=False
    )
    if "not glibc" in done.stderr:
        pytest.skip("this malloc is not glibc's")
    return int(done.stdout)


def test_freed_blocks_are_used_again_when_memory_is_kept() -> None:
    assert 4 * faults("kept") < faults("as it is")


# Counts the resident pages of gaps between blocks, before and after they are returned.
RETURN = """
import os, sys
from antiphon.transport.heap import keep_freed_memory, return_unused_memory
if not keep_freed_memory():
    sys.exit("not glibc")
def resident():
    return int(open("/proc/self/statm").read().split()[1])
blocks = [bytearray(b"1" * 65536) for _ in range(1024)]
del blocks[::2]
before = resident()
returned = return_unused_memory()
print(before - resident() if returned else 0)
"""


def test_gaps_between_blocks_are_returned() -> None:
    page = resource.getpagesize()
    assert faults("", RETURN) > (16 << 20) // page


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


# Counts the page faults of a thread that takes what another has freed.
OTHER_THREAD = """
import resource, sys, threading
from antiphon.transport.heap import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory():
    sys.exit("not glibc")
faults = []
def touch():
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    blocks = [bytearray(1 << 20) for _ in range(48)]
    for block in blocks:
        block[::4096] = b"1" * 256
    del block, blocks
    faults.append(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
for _ in range(2):
    thread = threading.Thread(target=touch)
    thread.start()
    thread.join()
    # A thread's arena is used again once it has ended.
    keep = threading.Event()
    ready = threading.Event()
    def hold():
        bytearray(1 << 16)
        ready.set()
        keep.wait()
    threading.Thread(target=hold, daemon=True).start()
    ready.wait()
print(faults[-1])
"""


def test_a_thread_uses_what_another_has_freed() -> None:
    assert 4 * faults("kept", OTHER_THREAD) < faults("as it is", OTHER_THREAD)
