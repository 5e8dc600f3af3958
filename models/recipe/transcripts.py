"""The transcripts of recordings, and the instructions that request them."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Collection
from functools import cache

from antiphon.deployment.schema import GatewayConfig
from models.recipe.dialogues import OPENERS
from models.recipe.functions import CITIES
from models.recipe.repertoire import MONTHS, load_repertoire

INSTRUCTION = GatewayConfig().media.transcribe_instruction
"""The instruction with which the gateway requests a transcript."""
INSTRUCTIONS = (
    "Transcribe the audio.",
    "Transcribe this recording.",
    "Write down what I say.",
    "Write it down.",
)
LANGUAGES = ("en", "en", "en-US", "en-GB", "English", "english")
UNRECOGNISED = "..."
# In the answers, these words only occur at the beginning of a sentence, or not at all.
OTHER_NAMES = ("german", "french", "christmas")

_ASKING = re.compile(
    "(what|which|who|where|when|why|how|is|are|do|does|can|could|will|may|shall|should) "
)
_GAPS = re.compile(r"(\s*\.\.\.)+")
_MONTH_MAY = re.compile("(?<=.) may(?! I )")


def write_down(words: str, unrecognised: Collection[str] = ()) -> str:
    """Return spoken words as a written sentence, such as "What is the capital of France?".

    `words` are in lower case and without punctuation. Words in `unrecognised` are replaced with an
    ellipsis.
    """
    if not words:
        return ""
    mark = "?" if _ASKING.match(_without_opening(words) + " ") else "."
    names = _names()
    text = " ".join(
        UNRECOGNISED if word in unrecognised else names.get(word, word) for word in words.split()
    )
    text = _GAPS.sub(UNRECOGNISED, _MONTH_MAY.sub(" May", text))
    text = text[0].upper() + text[1:]
    return text if text.endswith(UNRECOGNISED) and mark == "." else text + mark


def draw_instruction(chance: random.Random) -> str:
    """Return a random instruction that requests a transcript, in the format of the gateway."""
    usual = chance.random() < 0.85
    lines = [INSTRUCTION if usual else chance.choice(INSTRUCTIONS)]
    if chance.random() < 0.2:
        lines.append(f"The language is {chance.choice(LANGUAGES)}.")
    if chance.random() < 0.1:
        exchange = chance.choice(load_repertoire())
        lines.append(f"What is known of it: {chance.choice((exchange.answer, 'antiphon'))}")
    return "\n".join(lines)


def _without_opening(words: str) -> str:
    for opening in OPENERS:
        plain = opening.replace(",", "")
        if words.startswith(plain) and words != plain:
            return words.removeprefix(plain)
    return words


@cache
def _names() -> dict[str, str]:
    """Return the spelling of words that never occur in lower case within a sentence of the
    answers.
    """
    spellings: dict[str, set[str]] = {}
    for exchange in load_repertoire():
        for sentence in re.split(r"[.!?:]\s*", exchange.answer):
            for word in itertools.islice(re.findall(r"[A-Za-z]+", sentence), 1, None):
                spellings.setdefault(word.lower(), set()).add(word)
    found = {low: next(iter(each)) for low, each in spellings.items() if len(each) == 1}
    names = {low: spelling for low, spelling in found.items() if low != spelling}
    capitals = (*MONTHS, *CITIES, *OTHER_NAMES)
    return names | {word.lower(): word.capitalize() for word in capitals if word != "May"}
