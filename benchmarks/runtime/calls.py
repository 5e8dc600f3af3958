"""Counts calls of Python functions that are defined in `antiphon`, on all threads."""

from __future__ import annotations

import itertools
import sys
import threading
from types import CodeType, FrameType
from typing import Any

PACKAGE = "/antiphon/"
LEFT_OUT = ("/testkit/antiphon_testkit/", "/antiphon/v1/")


class CallCount:
    """Counts calls between `start` and `stop`, on this thread and on threads that start after
    `start`.

    A generator or coroutine counts each time it is resumed.
    """

    def __init__(self) -> None:
        self._counts = itertools.count()
        self._counted: dict[CodeType, bool] = {}

    def start(self) -> None:
        """Start counting."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def stop(self) -> int:
        """Stop counting, and return the number of calls."""
        sys.setprofile(None)
        threading.setprofile(None)
        return next(self._counts)

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        code = frame.f_code
        counted = self._counted.get(code)
        if counted is None:
            name = code.co_filename
            counted = PACKAGE in name and not any(part in name for part in LEFT_OUT)
            self._counted[code] = counted
        if counted:
            next(self._counts)
