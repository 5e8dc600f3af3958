"""Displays a conversation, either live on a terminal or line by line.

On a terminal, the text and the waveform of an answer form a block that is redrawn repeatedly. Lines
that have scrolled out of the window cannot be redrawn, so the block is kept shorter than the window
while it grows. The complete text is printed at the end of the answer.
"""

from __future__ import annotations

import shutil
import textwrap
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from antiphon.values.answer import FunctionCall
from antiphon_tools.demo.measure import AnswerProgress, MeasuredAnswer
from antiphon_tools.demo.waveform import from_pcm16, waveform_rows

NAME_WIDTH = 10
ALOUD = "asked as a spoken recording"
WIDEST = 100
LIVE_TEXT_LINES = 6

_BOLD, _DIM, _CYAN, _REVERSE, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[36m", "\x1b[7m", "\x1b[0m"
_UP, _CLEAR_LINE_END = "\x1b[{}A", "\x1b[K"
_INDENT = " " * NAME_WIDTH


class Display:
    """Prints questions, answers and their statistics to a stream."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._terminal = stream.isatty()
        self._speaker = ""
        self._drawn = 0

    def ask(self, question: str, *, aloud: bool = False) -> None:
        """Print a question and indicate whether it is spoken."""
        self._print(f"{self._named('you')}{question}")
        if aloud:
            self._print(f"{_INDENT}{self._styled(_DIM, ALOUD)}")

    def transcript(self, words: str) -> None:
        """Print the transcript of a spoken question."""
        self._print(f"{_INDENT}{self._styled(_DIM, _printable(f'transcribed: {words}'))}")

    def prompt(self) -> None:
        """Print a prompt after which the user can type a question."""
        print(self._named("you"), end="", file=self._stream, flush=True)

    def begin(self, speaker: str) -> None:
        """Start an answer."""
        self._speaker = speaker
        self._drawn = 0

    def show(self, progress: AnswerProgress) -> None:
        """Draw the answer so far and replace the previous drawing."""
        if self._terminal and (progress.text or progress.pcm16):
            lines = _wrapped(progress.text, self._width())
            self._draw(lines[-LIVE_TEXT_LINES:], progress)

    def call(self, calls: Sequence[FunctionCall], result: str) -> None:
        """Print the functions that the answer calls and their result."""
        for each in calls:
            self._print(self._named(self._speaker) + _printable(f"{each.name}({each.arguments})"))
            self._print(f"{_INDENT}{self._styled(_DIM, f'returns {result}')}")
        self._drawn = 0

    def end(self, answer: MeasuredAnswer, saved: Path | None) -> None:
        """Print the complete answer and its statistics."""
        reply = answer.reply
        whole = AnswerProgress(reply.text, bytearray(reply.pcm16), reply.sample_rate_hz)
        if self._terminal:
            self._draw(_wrapped(whole.text, self._width()), whole)
        else:
            self._print(self._named(self._speaker) + _printable(whole.text))
        numbers = describe(answer) + (f" · {saved}" if saved else "")
        self._print(f"{_INDENT}{self._styled(_DIM, numbers)}\n")

    def _draw(self, text: list[str], progress: AnswerProgress) -> None:
        """Draw the block at the position where it was drawn before."""
        samples = from_pcm16(progress.pcm16)
        upper, lower = waveform_rows(samples, progress.sample_rate_hz, self._width())
        lines = [
            self._named(self._speaker) + "".join(text[:1]),
            *(_INDENT + line for line in text[1:]),
            f"{_INDENT}{_CYAN}{upper}{_PLAIN}",
            f"{_INDENT}{_CYAN}{_REVERSE}{lower}{_PLAIN}",
        ]
        back = _UP.format(self._drawn) if self._drawn else ""
        self._drawn = len(lines)
        self._print(back + "\n".join(line + _CLEAR_LINE_END for line in lines))

    def _named(self, name: str) -> str:
        """Format a speaker's name with a fixed width."""
        return self._styled(_BOLD, f"{name:<{NAME_WIDTH - 1}.{NAME_WIDTH - 1}} ")

    def _styled(self, style: str, text: str) -> str:
        return f"{style}{text}{_PLAIN}" if self._terminal else text

    def _width(self) -> int:
        """Return the width that is available next to the names."""
        return max(20, min(WIDEST, shutil.get_terminal_size().columns - 1) - NAME_WIDTH)

    def _print(self, text: str) -> None:
        print(text, file=self._stream, flush=True)


LEGEND = (
    "TTFT: time to first text. TTFA: time to first audio. RTF: generation time divided by audio "
    "duration."
)


def describe(answer: MeasuredAnswer) -> str:
    """Format the latency, duration and speed of an answer."""
    parts = []
    if answer.first_text_s is not None:
        parts.append(f"TTFT {1000 * answer.first_text_s:.0f} ms")
    if answer.first_audio_s is None:
        return " · ".join([*parts, "no audio"])
    parts.append(f"TTFA {1000 * answer.first_audio_s:.0f} ms")
    parts.append(f"{answer.reply.audio_s:.1f} s of audio")
    return " · ".join([*parts, f"RTF {answer.real_time_factor:.2f}"])


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap the text at the given width. A wide character occupies two columns."""
    wide = any(unicodedata.east_asian_width(each) in "WF" for each in text)
    return textwrap.wrap(_printable(text), width // 2 if wide else width)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)
