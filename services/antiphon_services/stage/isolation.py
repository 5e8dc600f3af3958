"""Ensures that a failure affects only the segment that causes it, even if several segments share a
call.
"""

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
    """Return a context manager in which an exception fails only this segment. `end` frees the
    segment's resources.

    If the device is lost, all segments are affected, so the error is raised.
    """
    with apart((key,), events, end):
        yield


@contextlib.contextmanager
def apart(
    keys: Collection[SegmentKey], events: list[EngineEvent], end: Callable[[], None]
) -> Iterator[None]:
    """Like `alone`, but for segments that share a call which can't be repeated."""
    try:
        yield
        return
    except AntiphonError as error:
        # Drop the traceback, because its frames refer to `events` and to the input.
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
    """Process all items in one call. Returns a function for each item, which returns the item's
    result or raises its error.

    If the call fails, each item is processed separately when its result is requested, so it must be
    possible to repeat `run`. If the device is lost, the error is raised immediately.
    """
    try:
        return [partial(_result, result) for result in run(items)]
    except Exception as error:
        if device_is_lost(error):
            raise
        _log.exception("a call for %d segments failed; processing them one at a time", len(items))
    return [partial(_run_alone, run, item) for item in items]


def _result(result: Result) -> Result:
    return result


def _run_alone(run: Callable[[Sequence[Item]], Sequence[Result]], item: Item) -> Result:
    return run([item])[0]
