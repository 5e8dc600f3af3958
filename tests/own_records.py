"""The log records of one subject.

`caplog` captures every logger of the test process: gRPC's threads, servers that outlive a test, and
asyncio when it collects what an earlier test left.
"""

from __future__ import annotations

import logging

import pytest


def records_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[logging.LogRecord]:
    """The records of a logger and of its children."""
    return [
        each for each in caplog.records if each.name == logger or each.name.startswith(f"{logger}.")
    ]


def lines_of(caplog: pytest.LogCaptureFixture, logger: str) -> list[str]:
    """What these records say."""
    return [each.getMessage() for each in records_of(caplog, logger)]
