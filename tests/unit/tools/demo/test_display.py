"""What is printed: on a terminal one block that is drawn over, elsewhere whole lines."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from antiphon_tools.demo.display import Display
from antiphon_tools.demo.measure import AnswerProgress
from tests.unit.tools.demo.answers import RATE_HZ, pcm16, turn


class Terminal(io.StringIO):
    """A stream that says it is one."""

    def isatty(self) -> bool:
        return True

    def screen(self) -> list[str]:
        """The lines that a person sees, without colours."""
        lines, row, column = [""], 0, 0
        for piece in re.findall(r"\x1b\[\d*\w|\n|[^\x1b\n]+", self.getvalue()):
            if piece == "\n":
                row, column = row + 1, 0
                lines += [""] * (row + 1 - len(lines))
            elif piece.endswith("A") and piece.startswith("\x1b"):
                row -= int(piece[2:-1])
            elif piece == "\x1b[K":
                lines[row] = lines[row][:column]
            elif not piece.startswith("\x1b"):
                lines[row] = lines[row][:column] + piece + lines[row][column + len(piece) :]
                column += len(piece)
        return lines


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window of 40 columns."""
    monkeypatch.setenv("COLUMNS", "40")


def progress(text: str, sound: bytes = b"") -> AnswerProgress:
    return AnswerProgress(text, bytearray(sound), RATE_HZ if sound else 0)


def test_answer_is_a_line_and_its_numbers_when_the_stream_is_no_terminal() -> None:
    stream = io.StringIO()
    display = Display(stream)
    display.ask("Well?")
    display.begin("low")
    display.show(progress("Ye"))
    sound = pcm16(1.0, 9000)
    display.end(turn(sound=sound).answer, Path("out/turn-1.wav"))
    assert stream.getvalue().splitlines() == [
        "you       Well?",
        "low       Yes.",
        "          TTFT 50 ms · TTFA 250 ms · 1.0 s of audio · RTF 0.50 · out/turn-1.wav",
        "",
    ]


def test_numbers_say_that_there_is_no_audio_when_none_came() -> None:
    stream = io.StringIO()
    display = Display(stream)
    display.begin("low")
    display.end(turn().answer, None)
    assert "TTFT 50 ms · no audio\n" in stream.getvalue()


@pytest.mark.usefixtures("narrow")
def test_answer_is_drawn_over_what_was_shown_of_it_on_a_terminal() -> None:
    stream = Terminal()
    display = Display(stream)
    display.begin("low")
    sound = pcm16(0.08, 9000)
    for so_far in (
        "One",
        "One two three four five six seven",
        "One two three four five six seven 8",
    ):
        display.show(progress(so_far, sound))
    whole = turn(text="One two three four five six seven 8.", sound=sound)
    display.end(whole.answer, None)
    assert stream.screen()[:5] == [
        "low       One two three four five six",
        "          seven 8.",
        "          ██",
        "          ██",
        "          TTFT 50 ms · TTFA 250 ms · 0.1 s of audio · RTF 6.25",
    ]


@pytest.mark.usefixtures("narrow")
def test_answer_stays_low_while_it_grows_and_is_whole_when_it_has_ended() -> None:
    stream = Terminal()
    display = Display(stream)
    display.begin("low")
    text = " ".join(f"word{at}" for at in range(60))
    display.show(progress(text))
    assert stream.getvalue().count("\n") <= 8
    display.end(turn(text=text).answer, None)
    seen = " ".join(stream.screen())
    assert seen.split().count("word0") == 1
    assert all(f"word{at}" in seen.split() for at in range(60))


@pytest.mark.usefixtures("narrow")
def test_control_characters_of_an_answer_do_not_reach_the_terminal() -> None:
    stream = Terminal()
    display = Display(stream)
    display.begin("low")
    display.end(turn(text="a\x1b[2Jb\rc").answer, None)
    assert "\x1b[2J" not in stream.getvalue()
    assert "\r" not in stream.getvalue()
