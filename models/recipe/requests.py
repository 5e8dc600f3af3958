"""Questions to judge a checkpoint by: its repertoire, and sentences that are new to it."""

from __future__ import annotations

import random
from dataclasses import dataclass

from models.recipe.codes import VOICES
from models.recipe.dialogues import COMMANDS
from models.recipe.repertoire import load_repertoire, spoken_words

# With words drawn at random, these are in no training text.
PATTERNS = (
    "the {} {} is {}",
    "my {} wants the {} and the {}",
    "we {} a {} in the {}",
    "they saw {} near the {} {}",
    "{} and {} are not {}",
    "you can {} the {} {} tomorrow",
    "a {} never {} without {}",
    "put the {} on the {}",
)


@dataclass(frozen=True, slots=True)
class Request:
    """A question, the answer that is expected and the voice that is to give it."""

    asked: str
    expected: str
    voice: str


def repertoire_requests(voice: str) -> list[Request]:
    """Each exchange's first question, as a person would write it."""
    return [
        Request(f"{exchange.questions[0].capitalize()}?", exchange.answer, voice)
        for exchange in load_repertoire()
    ]


def repeat_requests(count: int, seed: int) -> list[Request]:
    """Commands to repeat sentences that were never trained, in alternating voices."""
    chance = random.Random(seed)
    words = [word for word in spoken_words() if len(word) > 2]
    voices = list(VOICES)
    found = []
    for at in range(count):
        pattern = PATTERNS[at % len(PATTERNS)]
        text = pattern.format(*(chance.choice(words) for _ in range(pattern.count("{}"))))
        asked = COMMANDS[0].format(text).capitalize()
        found.append(Request(asked, f"{text.capitalize()}.", voices[at % len(voices)]))
    return found
