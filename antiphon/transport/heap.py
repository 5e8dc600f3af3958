"""Process-wide memory settings.

Freed memory is kept. By default, glibc maps every block above a threshold separately and unmaps it
when freed. Each payload of some MiB that passes through gRPC would then cause page faults several
times over, at about 0.5 ms per MiB, more than all copies together.

All threads share one arena. By default each thread has its own, so memory freed by one thread
cannot be reused by another. A stage warmed up on the loading thread would fault its memory again on
the engine's thread, and hold it twice. A thread's arena consists of 64 MiB pieces, which are
unmapped whatever the thresholds: a decoder took 25,000 page faults for every load of 16 sessions.

Objects that exist after startup are exempt from garbage collection. A full collection stops
everything: 30 to 40 ms for the modules of a gateway, 160 ms for a stage's, longer than a frame of
speech.
"""

from __future__ import annotations

import ctypes
import gc

# From malloc.h.
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
# Largest block allocated from the heap, and memory that may stay free at its top.
LARGEST_BYTES = 64 << 20
KEPT_BYTES = 256 << 20


def keep_freed_memory() -> bool:
    """Keep freed memory in the process. Return False if malloc is not glibc's.

    Permanent and process-wide. Call it before threads are started.
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
    """Exempt all current objects from garbage collection. Call it when everything is loaded.

    Reference cycles among current objects are never freed.
    """
    gc.collect()
    gc.freeze()
