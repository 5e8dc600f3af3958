"""Isolates the faults of segments that share calls."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import TypeVar

from antiphon.errors import AntiphonError, Internal
from antiphon.runtime.engine import EngineEvent, Failed
from antiphon.values.segment import SegmentKey
from antiphon_services.stage.device_loss import device_is_lost

Item = TypeVar("Item")
Result = TypeVar("Result")

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def alone(key: SegmentKey, events: list[EngineEvent], end: Callable[[], None]) -> Iterator[None]:
    """A context whose exceptions fail only this segment; `end` frees its resources.

    A lost device affects all segments, so its error is raised.
    """
    with apart((key,), events, end):
        yield


@contextlib.contextmanager
def apart(
    keys: Collection[SegmentKey], events: list[EngineEvent], end: Callable[[], None]
) -> Iterator[None]:
    """Like `alone`, for segments that share a call which cannot be repeated."""
    try:
        yield
        return
    except AntiphonError as error:
        # Drop the traceback, whose frames hold `events` and the input.
        fault = error.with_traceback(None)
    except Exception as error:
        if device_is_lost(error):
            raise
        _log.exception("the step of %s failed", ", ".join(map(str, keys)))
        fault = Internal(f"the step failed: {type(error).__name__}: {error}")
        fault.__cause__ = error.with_traceback(None)
    end()
    events.extend(Failed(key, fault) for key in keys)


def together(
    run: Callable[[Sequence[Item]], Sequence[Result]], items: Sequence[Item]
) -> list[Callable[[], Result]]:
    """Run all items in one call. Return functions that return each item's result or raise its
    fault.

    If the call fails, each item runs separately when its result is requested, so `run` must be
    repeatable. A lost device's error is raised.
    """
    try:
        return [partial(_result, result) for result in run(items)]
    except Exception as error:
        if device_is_lost(error):
            raise
        _log.exception("a call for %d segments failed; now one by one", len(items))
    return [partial(_run_alone, run, item) for item in items]


def _result(result: Result) -> Result:
    return result


def _run_alone(run: Callable[[Sequence[Item]], Sequence[Result]], item: Item) -> Result:
    return run([item])[0]
