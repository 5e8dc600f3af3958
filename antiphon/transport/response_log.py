"""Keeps messages until the other end has confirmed them. This module performs no I/O."""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

from antiphon.errors import ResourceExhausted

MAX_RESPONSES = 65536
Response = TypeVar("Response")


class ResponseLog(Generic[Response]):
    """Numbered responses that haven't been confirmed yet."""

    def __init__(self) -> None:
        self._responses: deque[Response] = deque()
        self._first = 0

    def append(self, response: Response) -> None:
        """Append a response. Raises `ResourceExhausted` if too many responses are unconfirmed."""
        if len(self._responses) >= MAX_RESPONSES:
            raise ResourceExhausted(f"{MAX_RESPONSES} responses wait for the producer")
        self._responses.append(response)

    def confirmed(self, count: int) -> list[Response]:
        """Drop the first `count` responses, because they have been confirmed. Returns those that
        are newly confirmed.
        """
        dropped = []
        while self._first < count and self._responses:
            dropped.append(self._responses.popleft())
            self._first += 1
        return dropped

    def since(self, number: int) -> list[Response]:
        """Return all responses starting with number `number`."""
        return [self._responses[at] for at in range(number - self._first, len(self._responses))]

    @property
    def first(self) -> int:
        """The number of the oldest unconfirmed response."""
        return self._first

    @property
    def count(self) -> int:
        """The total number of responses that have been appended so far."""
        return self._first + len(self._responses)
