"""Tokenising a long text leaves the interpreter to the stage's other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon.conversation import ConversationMessage, TextPart
from antiphon_services.text.chat import load_chat_tokenizer
from antiphon_services.text.literal import LiteralTokenizer, load_tokenizer

LONG = "a" * 400_000
LEAST_TURNS = 20
"""Turns that another thread must get. It gets a few in any case: before and after the tokeniser's
own work, and between steps of Python."""


def turns_beside(work: Callable[[], object]) -> int:
    """How many times another thread gets the interpreter while `work` runs."""
    turns = 0
    running = threading.Thread(target=work)
    running.start()
    while running.is_alive():
        turns += 1
        # Gives the interpreter back, and has to get it again.
        time.sleep(0.001)
    running.join()
    return turns


@pytest.mark.parametrize("text", [LONG, LONG + "<|im_end|>"], ids=["plain", "spells_control"])
def test_other_threads_run_while_a_chat_is_tokenised(other_dir: Path, text: str) -> None:
    chat = load_chat_tokenizer(other_dir)
    message = ConversationMessage("user", (TextPart(text),))
    assert turns_beside(lambda: chat.encode([message])) >= LEAST_TURNS


def test_other_threads_run_while_a_text_to_read_aloud_is_tokenised(other_dir: Path) -> None:
    literal = LiteralTokenizer(load_tokenizer(other_dir), tags=False)
    assert turns_beside(lambda: literal.encode(LONG, field="input")) >= LEAST_TURNS
