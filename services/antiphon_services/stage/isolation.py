"""Segments share calls, but not each other's faults."""

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
    """What goes wrong inside fails this segment and no other; `end` frees what it holds.

    A lost device is everyone's fault: its error is raised.
    """
    with apart((key,), events, end):
        yield


@contextlib.contextmanager
def apart(
    keys: Collection[SegmentKey], events: list[EngineEvent], end: Callable[[], None]
) -> Iterator[None]:
    """As `alone`, for segments that share a call which cannot be run again."""
    try:
        yield
        return
    except AntiphonError as error:
        # The frames that it came through hold `events`, and the input.
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
    """Run all items in one call; what gives each item's result, or raises its fault.

    When the call fails, each runs in a call of its own as its result is asked for, so `run`
    must do the same again. A lost device's error is raised.
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
