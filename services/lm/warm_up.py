"""Runs segments through an engine before its stage is ready, so that no request pays for firsts."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.runtime.engine import Completed, Engine, Failed
from antiphon.segment import SegmentKey


def run_to_the_end(engine: Engine, keys: Collection[SegmentKey]) -> list[Failed]:
    """Step until these segments, which have all of their input, have ended, and release them.

    Returns how those that failed did.
    """
    left, failures = set(keys), []
    while left:
        for event in engine.step():
            if isinstance(event, Failed):
                failures.append(event)
            if isinstance(event, Completed | Failed):
                engine.release(event.key)
                left.remove(event.key)
    return failures
