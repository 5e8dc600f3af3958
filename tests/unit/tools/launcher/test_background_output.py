"""Lines for a reader that stops reading."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from antiphon_tools.launcher.background_output import BackgroundOutput
from antiphon_tools.launcher.console import Console

LONG_S = 240.0
LINE = "x" * 1023


class Pipe:
    def __init__(self) -> None:
        read_end, self.write_end = os.pipe()
        self.reader = os.fdopen(read_end)
        self.errors: list[OSError] = []

    def lines(self, count: int) -> list[str]:
        """The next lines."""
        return [self.reader.readline().rstrip("\n") for _ in range(count)]


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.reader.close()
    os.close(made.write_end)


def test_lines_that_a_stalled_reader_has_no_room_for_are_dropped_and_counted(pipe: Pipe) -> None:
    output = BackgroundOutput(pipe.write_end, pipe.errors.append, max_bytes=64 << 10)
    count = 1000
    for number in range(count):
        # This would wait forever if it waited for the reader.
        output.add(f"{number:04} {LINE}")
    seen = []
    while not (seen and seen[-1].startswith("[")):
        seen += pipe.lines(1)
    *printed, note = seen
    assert [int(line.split()[0]) for line in printed] == list(range(len(printed)))
    assert 60 <= len(printed) < 200
    assert note == f"[{count - len(printed)} lines dropped, because the output was not being read]"
    output.add("later")
    assert pipe.lines(1) == ["later"]
    assert output.close(LONG_S) == 0


def test_line_that_is_too_long_is_dropped_when_nothing_else_is_waiting(pipe: Pipe) -> None:
    output = BackgroundOutput(pipe.write_end, pipe.errors.append, max_bytes=1 << 10)
    output.add(LINE + LINE)
    assert pipe.lines(1) == ["[1 line dropped, because the output was not being read]"]
    output.add("later")
    assert pipe.lines(1) == ["later"]
    assert output.close(LONG_S) == 0


def test_output_that_has_no_thread_is_printed_by_the_caller(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with os.fdopen(os.dup(pipe.write_end), "w") as stream:
        console = Console(stream, background=True)
        console.say("alone")
        console.close()
    assert pipe.lines(1) == ["alone"]


def test_close_waits_for_a_reader_that_is_slow(pipe: Pipe) -> None:
    output = BackgroundOutput(pipe.write_end, pipe.errors.append)
    for number in range(200):
        output.add(f"{number} {LINE}")
    seen: list[str] = []
    reading = threading.Thread(target=lambda: seen.extend(pipe.lines(200)))
    reading.start()
    assert output.close(LONG_S) == 0
    reading.join()
    assert [int(line.split()[0]) for line in seen] == list(range(200))


def test_close_gives_up_on_a_reader_that_has_stalled(pipe: Pipe) -> None:
    output = BackgroundOutput(pipe.write_end, pipe.errors.append)
    for number in range(200):
        output.add(f"{number} {LINE}")
    lost = output.close(0.0)
    assert 0 < lost <= 200
    assert output.close(0.0) == 0


def test_a_reader_that_has_ended_is_reported_for_each_line(pipe: Pipe) -> None:
    pipe.reader.close()
    output = BackgroundOutput(pipe.write_end, pipe.errors.append)
    output.add("lost")
    output.add("lost too")
    assert output.close(LONG_S) == 0
    assert [type(each) for each in pipe.errors] == [BrokenPipeError, BrokenPipeError]
