"""The memory that is still held of what some work has allocated."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable


def bytes_held_after(work: Callable[[], object]) -> int:
    """Bytes that Python has allocated in the meantime and not freed."""
    gc.collect()
    tracemalloc.start()
    try:
        work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
