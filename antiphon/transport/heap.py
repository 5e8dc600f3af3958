"""Memory settings for the whole process.

Freed memory is kept in the process. By default, glibc maps every block above a threshold
separately, and unmaps it when it is freed. A payload of several MiB would then cause page faults
several times on its way through gRPC. At about 0.5 ms per MiB, they would cost more than all copies
combined.

All threads share a single arena. By default, each thread has an arena of its own, so memory that
one thread has freed cannot be used by another. A stage is warmed up on the thread that loads it.
Without a shared arena, the engine thread would cause the same page faults again, and the process
would hold the memory twice. In addition, the arena of a thread consists of 64 MiB pieces, which are
unmapped regardless of the thresholds. In one measurement, a decoder caused 25,000 page faults for
every load of 16 sessions.

Objects that exist after startup are exempt from garbage collection. A full collection pauses the
whole process. For the modules of a gateway, this takes 30 to 40 ms, and for those of a stage 160
ms, which is longer than a frame of speech.
"""

from __future__ import annotations

import ctypes
import gc

# These constants are defined in malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# The maximum size of a block that is allocated from the heap, and the amount of memory that may
# remain free at its top.
LARGEST_BYTES = 64 << 20
KEPT_BYTES = 256 << 20


def keep_freed_memory() -> bool:
    """Keep freed memory in the process. Returns False if glibc's malloc is not in use.

    This affects the whole process and cannot be undone. Call it before threads are started.
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
    """Exempt all current objects from garbage collection. Call this when everything has been
    loaded.

    Reference cycles among these objects are never freed.
    """
    gc.collect()
    gc.freeze()
