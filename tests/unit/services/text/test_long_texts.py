"""Tokenizing a long text leaves the interpreter to the stage's other threads."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon_services.text.chat import load_chat_tokenizer
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer

LONG = "a" * 400_000
LEAST_TURNS = 20
"""A call that holds the interpreter's lock allows one or two: before its work and after it."""
ATTEMPTS = 10


class NativeCalls:
    """Profiles one thread. `inside` is the number of the tokenizer's running native call, or 0."""

    def __init__(self) -> None:
        self.inside = 0
        self._calls = 0

    def __call__(self, frame: FrameType, event: str, called: Any) -> None:
        if not getattr(called, "__name__", "").startswith("encode"):
            return
        if event == "c_call":
            self._calls += 1
            self.inside = self._calls
        elif event in ("c_return", "c_exception"):
            self.inside = 0


def turns_within(work: Callable[[], object]) -> int:
    """How often another thread gets an answer of another process within one native call of the
    tokenizer; the most of all calls that `work` makes.

    It releases the interpreter's lock while it waits for the answer, and then needs it again.
    """
    calls, turns, most = NativeCalls(), 0, 0

    def run() -> None:
        sys.setprofile(calls)
        work()

    running = threading.Thread(target=run)
    with subprocess.Popen(
        ["cat"], bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as echo:
        assert echo.stdin is not None
        assert echo.stdout is not None
        running.start()
        while running.is_alive():
            before = calls.inside
            echo.stdin.write(b"x")
            echo.stdout.read(1)
            turns = turns + 1 if before and calls.inside == before else 0
            most = max(most, turns)
        running.join()
    return most


def many_turns_within(work: Callable[[], object]) -> bool:
    """Whether a call allows `LEAST_TURNS`; tried again if other processes had the cores."""
    return any(turns_within(work) >= LEAST_TURNS for _ in range(ATTEMPTS))


@pytest.mark.parametrize("text", [LONG, LONG + "<|im_end|>"], ids=["plain", "spells_control"])
def test_other_threads_run_while_a_chat_is_tokenized(other_dir: Path, text: str) -> None:
    chat = load_chat_tokenizer(other_dir)
    message = ConversationMessage("user", (TextPart(text),))
    assert many_turns_within(lambda: chat.encode([message]))


def test_other_threads_run_while_a_text_to_read_aloud_is_tokenized(other_dir: Path) -> None:
    literal = LiteralTokenizer(load_tokenizer(other_dir), tags=False)
    assert many_turns_within(lambda: literal.encode(LONG, field="input"))


def test_a_call_that_holds_the_lock_allows_few_turns(other_dir: Path) -> None:
    tokenizer = load_tokenizer(other_dir).backend_tokenizer
    # A thread that has lost its core between the profile event and the call is counted as inside.
    assert any(
        turns_within(lambda: tokenizer.encode("a" * 50_000)) < LEAST_TURNS for _ in range(ATTEMPTS)
    )
