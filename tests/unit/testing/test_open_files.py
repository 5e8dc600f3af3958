"""What a process has open, while other threads close it."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import patch

from antiphon_testkit.open_files import open_files, opened_since


def test_open_files_are_listed_and_those_that_were_closed_meanwhile_left_out(
    tmp_path: Path,
) -> None:
    kept, closed = tmp_path / "kept", tmp_path / "closed"
    names = os.listdir("/proc/self/fd")
    with kept.open("w") as file:
        there = str(file.fileno())
        with closed.open("w") as other:
            gone = str(other.fileno())
        with patch.object(os, "listdir", return_value=[*names, there, gone]):
            found = open_files()
    assert str(kept) in found
    assert str(closed) not in found


def test_files_opened_since_are_told_from_those_that_were_there_or_have_closed(
    tmp_path: Path,
) -> None:
    closing, opening = tmp_path / "closing", tmp_path / "opening"
    with closing.open("w"):
        before = open_files()
    with opening.open("w"), opening.open():
        assert opened_since(before)[str(opening)] == 2
        assert str(closing) not in opened_since(before)
