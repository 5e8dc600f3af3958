"""The command's failures, and lines that a person types."""

from __future__ import annotations

import asyncio
import os
import pty
from pathlib import Path

import pytest

from antiphon_tools.demo.__main__ import main
from antiphon_tools.demo.keyboard import read_line


def test_demo_fails_with_the_reason_when_the_model_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert "is not a directory; use a checkpoint directory" in capsys.readouterr().err


async def test_lines_come_one_at_a_time_and_end_when_the_person_says_so() -> None:
    person, terminal = pty.openpty()
    try:
        os.write(person, b"one \ntwo\n\x04")
        lines = [await read_line(terminal) for _ in range(3)]
        assert lines == ["one", "two", None]
    finally:
        os.close(person)
        os.close(terminal)


async def test_waiting_for_a_line_ends_when_it_is_cancelled() -> None:
    person, terminal = pty.openpty()
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await read_line(terminal)
        os.write(person, b"after\n")
        assert await read_line(terminal) == "after"
    finally:
        os.close(person)
        os.close(terminal)
