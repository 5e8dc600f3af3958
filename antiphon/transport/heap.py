"""Memory settings that apply to the whole process.

Freed memory stays in the process. By default, glibc maps every block above a certain size
separately and unmaps the block when it is freed. A payload of several MiB would then cause page
faults several times on its way through gRPC. At about 0.5 ms per MiB, these would cost more than
all of the copying.

All threads share a single arena. By default, each thread has its own arena, so memory freed by one
thread can't be reused by another. A stage is warmed up on the thread that loads it. With separate
arenas, the engine thread would cause all the page faults again, and the process would use twice as
much memory. In addition, a thread's arena consists of 64 MiB pieces, which are unmapped regardless
of the thresholds. In one measurement, a decoder caused 25,000 page faults for every load of 16
sessions.

Loading leaves gaps between the weights, because it converts and packs them. A stage can return
these gaps to the operating system before its warm-up, which then only takes the memory that calls
need.

Objects that exist after startup are excluded from garbage collection, because a full collection
pauses the whole process. It takes 30 to 40 ms for the modules of a gateway. For those of a stage,
it takes 160 ms, which is longer than a frame of speech.
"""

from __future__ import annotations

import ctypes
import gc

# These constants come from malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# The maximum size of a block that is allocated from the heap, and the amount of memory at the top
# of the heap that may stay unused.
LARGEST_BYTES = 64 << 20
KEPT_BYTES = 256 << 20


def keep_freed_memory() -> bool:
    """Keep freed memory in the process. Returns False if the process doesn't use glibc's malloc.

    This affects the whole process and can't be undone. It must be called before any threads are
    started.
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


def return_unused_memory() -> bool:
    """Return all unused memory to the operating system. Returns False if nothing could be returned.

    Call this after loading and before the warm-up. Later, each returned page would cost a call a
    page fault.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return False
    return bool(trim(0))


def leave_out_startup() -> None:
    """Exclude all existing objects from garbage collection. Call this once everything has been
    loaded.

    Reference cycles among these objects are never freed.
    """
    gc.collect()
    gc.freeze()
