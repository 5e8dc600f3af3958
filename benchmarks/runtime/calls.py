"""Counts calls of Python functions that are written in `antiphon`, on all threads."""

from __future__ import annotations

import itertools
import sys
import threading
from types import CodeType, FrameType
from typing import Any

PACKAGE = "/antiphon/"
LEFT_OUT = ("/testkit/antiphon_testkit/", "/antiphon/v1/")


class CallCount:
    """Counts between `start` and `stop`, on threads that begin after `start` and on this one.

    A generator or coroutine counts each time it is entered.
    """

    def __init__(self) -> None:
        self._counts = itertools.count()
        self._counted: dict[CodeType, bool] = {}

    def start(self) -> None:
        """Begin."""
        threading.setprofile(self._profile)
        sys.setprofile(self._profile)

    def stop(self) -> int:
        """The calls so far."""
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
