"""Which messages of a stage's stream count as signs of life."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.v1 import session_pb2
from antiphon_gateway.sessions import line_connection
from antiphon_gateway.sessions.line_connection import FRESH_S
from antiphon_gateway.sessions.stage_stream import StageStream

LONG_S = 10 * FRESH_S


class Clock:
    """The time of a test, and a stage that sends messages after waits on it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *waits_s: float) -> None:
        self.now = 0.0
        self._waits_s = waits_s
        self.outputs = 0
        self.role, self.address = "thinker", "nowhere"
        self.stub = SimpleNamespace(RunSession=self._run_session)
        monkeypatch.setattr(line_connection, "time", SimpleNamespace(monotonic=lambda: self.now))

    async def _run_session(self, requests: object) -> AsyncIterator[session_pb2.SessionResponse]:
        for wait_s in self._waits_s:
            self.now += wait_s
            yield session_pb2.SessionResponse()

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None

    async def read(self, *away_s: float) -> list[int]:
        """Read all messages, and be elsewhere after each: `outputs` after each message."""
        stream = StageStream(self, session_pb2.SessionOpen())  # type: ignore[arg-type]
        counts, away = [], iter(away_s)
        async for _ in stream.responses():
            counts.append(self.outputs)
            self.now += next(away, 0.0)
        return counts


async def test_messages_that_a_reader_waits_for_are_signs_of_life(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await Clock(monkeypatch, 0.0, LONG_S, 0.0).read() == [1, 2, 3]


async def test_messages_found_by_a_reader_that_was_away_are_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client is slow and the stage frozen: what lies in buffers was sent before."""
    assert await Clock(monkeypatch, 0.0, 0.0, 0.0).read(LONG_S, LONG_S, LONG_S) == [1, 1, 1]


async def test_a_message_that_comes_long_after_the_reader_is_back_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await Clock(monkeypatch, 0.0, LONG_S).read(LONG_S) == [1, 2]
