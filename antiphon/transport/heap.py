"""What a process does about its memory once, for good.

Freed memory is kept. By default glibc maps every block above a threshold anew and gives it back
when it is freed, so that each payload of some MiB that passes through gRPC is paid for page by
page, several times over: about 0.5 ms each MiB, more than all copies together.

All threads share one arena. By default each has its own, so what one thread freed cannot be used by
another: a stage that was warmed up on the thread that loads would pay for its memory again on the
engine's, and hold it twice. An arena of a thread consists of pieces of 64 MiB, which are given back
whatever the thresholds say: a decoder paid 25,000 page faults for every load of 16 sessions.

What was there at the start is not looked at again. Python's garbage collector now and then goes
through all objects, with everything else standing: 30 to 40 ms for the modules of a gateway, 160
for a stage's, longer than a frame of speech lasts.
"""

from __future__ import annotations

import ctypes
import gc

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# Blocks up to this size come from the heap; this much may lie idle at its top.
LARGEST_BYTES = 64 << 20
KEPT_BYTES = 256 << 20


def keep_freed_memory() -> bool:
    """Use freed memory again instead of giving it back; False where malloc is not glibc's.

    For the whole process and for good; best called before threads are started.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    kept = (
        (_M_MMAP_THRESHOLD, LARGEST_BYTES),
        (_M_TRIM_THRESHOLD, KEPT_BYTES),
        (_M_ARENA_MAX, 1),
    )
    return all(mallopt(option, size) for option, size in kept)


def leave_out_startup() -> None:
    """Have the garbage collector look at what is made from now on alone; to be called when all is
    loaded. Objects in circles that are there now are not freed any more."""
    gc.collect()
    gc.freeze()
