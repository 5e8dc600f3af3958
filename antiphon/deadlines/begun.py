"""Runs an awaitable until it first has to wait, so that a timer is needed only if it has to wait.

Most writes to a client complete without waiting, as do most reads from a queue under load. With
`asyncio.timeout` around each of them, the event loop would set and cancel a timer that can never
expire.
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")


class Begun(Generic[Result]):
    """An awaitable that has been run until it first had to wait. Constructing it raises any error
    that occurs up to that point.

    `done` is true if the awaitable has completed without waiting. In either case, await this object
    exactly once to get the result. Do so in the same task and without awaiting anything else in
    between.
    """

    __slots__ = ("_first", "_result", "_steps", "done")

    def __init__(self, awaitable: Awaitable[Result]) -> None:
        self._steps: Generator[Any, Any, Result] = awaitable.__await__()
        self._first: Any = None
        self._result: Any = None
        self.done = False
        try:
            self._first = next(self._steps)
        except StopIteration as end:
            self._result, self.done = end.value, True

    def __await__(self) -> Generator[Any, Any, Result]:
        if self.done:
            made: Result = self._result
            return made
        awaited, self._first = self._first, None
        while True:
            try:
                sent = yield awaited
            except GeneratorExit:
                self._steps.close()
                raise
            except BaseException as error:
                # The error is not kept in another variable. It refers to this frame, so only the
                # garbage collector could then free what the awaitable has.
                try:
                    awaited = self._steps.throw(error)
                except StopIteration as end:
                    return self._returned(end)
            else:
                try:
                    awaited = self._steps.send(sent)
                except StopIteration as end:
                    return self._returned(end)

    def _returned(self, end: StopIteration) -> Result:
        result: Result = end.value
        return result
