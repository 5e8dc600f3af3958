"""Questions to evaluate a checkpoint, with its repertoire and with new sentences."""

from __future__ import annotations

import random
from dataclasses import dataclass

from models.recipe.codes import VOICES
from models.recipe.dialogues import COMMANDS
from models.recipe.repertoire import load_repertoire, spoken_words

# With random words, these sentences do not occur in the training texts.
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
    """A question, the expected answer, and the voice for the answer."""

    asked: str
    expected: str
    voice: str


def repertoire_requests(voice: str) -> list[Request]:
    """Return the first question of each exchange, with a capital letter and punctuation."""
    return [
        Request(f"{exchange.questions[0].capitalize()}?", exchange.answer, voice)
        for exchange in load_repertoire()
    ]


def repeat_requests(count: int, seed: int) -> list[Request]:
    """Return commands to repeat sentences that were not used in training, in alternating voices."""
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
