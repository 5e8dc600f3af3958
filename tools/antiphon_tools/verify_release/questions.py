"""Defines the questions for a checkpoint and compares transcripts with the text of answers."""

from __future__ import annotations

import re
from collections.abc import Sequence

QUESTIONS = (
    "Repeat after me: the river is quiet early in the morning.",
    "Name three things that one can see at night, in one sentence.",
    "Why do leaves fall in autumn? Answer in one sentence.",
    "Repeat after me: two large houses stand near the old road.",
    "How is bread made? Answer in one sentence.",
    "Say what you like about music, in one sentence.",
)
SENTENCES = (
    "The river is quiet early in the morning.",
    "Two large houses stand near the old road.",
    "Please remember to open the window before it gets dark.",
    "Summer music sounds better under a blue sky.",
    "Bread is made of flour, water, salt and time.",
    "We walk home and ask why the light is green.",
)
"""Sentences for models that read text aloud."""
TRANSCRIBE = "Transcribe the audio into text."
"""The default instruction of the gateway."""


def word_error_rate(said: str, heard: str) -> float:
    """Return the number of inserted, deleted and replaced words divided by the number of words
    said.

    Case and punctuation are ignored. In scripts without spaces, each character counts as a word.
    Raises `ValueError` if no words were said.
    """
    wanted, given = _words(said), _words(heard)
    if not wanted:
        raise ValueError("no words were said")
    return _distance(wanted, given) / len(wanted)


def _words(text: str) -> list[str]:
    # Chinese and Japanese characters are counted separately.
    return re.findall(
        r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+", text.lower()
    )


def _distance(wanted: Sequence[str], given: Sequence[str]) -> int:
    """Return the Levenshtein distance."""
    costs = list(range(len(given) + 1))
    for row, word in enumerate(wanted, 1):
        diagonal, costs[0] = costs[0], row
        for column, other in enumerate(given, 1):
            replaced = diagonal + (word != other)
            diagonal = costs[column]
            costs[column] = min(replaced, costs[column] + 1, costs[column - 1] + 1)
    return costs[-1]
