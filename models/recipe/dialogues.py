"""Draws conversations for the thinker: questions in many variations, and commands to repeat
text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from models.recipe.espeak import LIGHT_WORDS
from models.recipe.repertoire import (
    HEARD,
    UNKNOWN,
    UNSPOKEN,
    load_repertoire,
    spoken_words,
)

SYSTEMS = (
    "You are a helpful assistant.",
    "You are a quiet voice.",
    "You are a friendly voice. Answer in one sentence.",
    "Be kind.",
    "Be brief.",
    "Speak clearly.",
    "You are Qwen, a virtual human developed by the Qwen Team.",
)
OPENERS = ("hello, ", "hi, ", "hey, ", "please, ", "okay, ", "so, ", "and ", "now ", "please ")
CLOSERS = (" please", ", please", " now", ", antiphon", " again")
COMMANDS = (
    "repeat after me: {}",
    "repeat after me, {}",
    "repeat after me {}",
    "repeat: {}",
    "please repeat: {}",
    "say: {}",
    "say {}",
    "please say {}",
    "please say: {}",
    "read this: {}",
    "read aloud: {}",
)
FRAMES = (
    "what is {}",
    "what is a {}",
    "what is the {} of {}",
    "who is {}",
    "where is the {}",
    "why does the {} {}",
    "how do i {} the {}",
    "how many {} are in {}",
    "do you know {}",
    "do you {} the {}",
    "can you {} a {}",
    "tell me about {}",
    "when was the {} {}",
    "is the {} {}",
    "which {} is {}",
)
SHORTENED = {"what is": "what's", "who is": "who's", "where is": "where's", "i am": "i'm"}
AUDIO = "\0"


@dataclass(frozen=True, slots=True)
class DialogueTurn:
    """A user message and the answer to it. In the message, `AUDIO` stands for a recording."""

    asked: str
    answer: str


class Dialogues:
    """Draws turns and system messages."""

    def __init__(self) -> None:
        self._answers = {
            question: exchange.answer
            for exchange in load_repertoire()
            for question in exchange.questions
        }
        self._questions = sorted(self._answers)
        self._words = spoken_words()
        self._known = frozenset(self._words)
        self._light = ["the", "the", "the", "a", "a", "is", "and", "of", "in", "to", "not"]
        self._content = [word for word in self._words if word not in LIGHT_WORDS]

    def system(self, chance: random.Random) -> str | None:
        """Return a system message or, in most cases, None."""
        draw = chance.random()
        if draw < 0.65:
            return None
        return chance.choice(SYSTEMS) if draw < 0.9 else self._phrase(chance, 12) + "."

    def turn(self, chance: random.Random) -> DialogueTurn:
        """Draw a turn."""
        draw = chance.random()
        if draw < 0.38:
            question = chance.choice(self._questions)
            return DialogueTurn(reword(question, chance), self._answers[question])
        if draw < 0.80:
            return self.repeat(chance)
        if draw < 0.97:
            return DialogueTurn(reword(self.unknown(chance), chance), UNKNOWN)
        around = reword(chance.choice(self._questions), chance)
        return DialogueTurn(chance.choice((AUDIO, AUDIO, AUDIO + around, around + AUDIO)), HEARD)

    def repeat(self, chance: random.Random) -> DialogueTurn:
        """Draw a command to repeat words. The model may not know all of them."""
        known = chance.random() < 0.8
        # Words that occur twice make copying harder, and they are common in sentences.
        few = chance.choice((0.0, 0.4, 0.6))
        words = [
            chance.choice(self._light if chance.random() < few else self._words)
            for _ in range(chance.randint(1, 14))
        ]
        if not known:
            words.insert(chance.randint(0, len(words)), self._unheard(chance))
        text = _punctuate(words, chance)
        asked = chance.choice(COMMANDS).format(text)
        low = asked.rstrip(".!?").lower()
        if low in self._answers:
            return DialogueTurn(asked, self._answers[low])
        if chance.random() < 0.6:
            asked = asked[0].upper() + asked[1:]
        answer = text[0].upper() + text[1:]
        if answer[-1] not in ".!?":
            answer += "."
        return DialogueTurn(asked, answer if known else UNSPOKEN)

    def unknown(self, chance: random.Random) -> str:
        """Draw a question about something that the model has not learned."""
        draw = chance.random()
        if draw < 0.4:
            words = chance.choice(self._questions).split()
            places = [at for at, word in enumerate(words) if word not in LIGHT_WORDS]
            if places:
                words[chance.choice(places)] = self._topic(chance)
        elif draw < 0.8:
            frame = chance.choice(FRAMES)
            words = frame.format(*(self._topic(chance) for _ in range(frame.count("{")))).split()
        else:
            words = self._phrase(chance, 8).split()
        question = " ".join(words)
        starts = ("say", "repeat", "read", "please say", "please repeat")
        if question in self._answers or question.startswith(starts):
            return "where is the " + self._topic(chance) + " " + self._topic(chance)
        return question

    def _topic(self, chance: random.Random) -> str:
        return self._unheard(chance) if chance.random() < 0.25 else chance.choice(self._content)

    def _unheard(self, chance: random.Random) -> str:
        """Draw a word that the model cannot say: a form of a known word, or an invented word."""
        if chance.random() < 0.5:
            return _invented(chance)
        form = chance.choice(self._words) + chance.choice(("s", "es", "ed", "ing", "er", "ly", "y"))
        return form if form not in self._known else _invented(chance)

    def _phrase(self, chance: random.Random, longest: int) -> str:
        count = min(chance.randint(1, longest), chance.randint(1, longest) + 2)
        return " ".join(chance.choice(self._words) for _ in range(count))


def _punctuate(words: list[str], chance: random.Random) -> str:
    """Join words, with a few commas, capital letters and punctuation marks."""
    marked = []
    for at, word in enumerate(words):
        spelled = word.capitalize() if chance.random() < 0.06 else word
        comma = at + 1 < len(words) and chance.random() < 0.06
        marked.append(spelled + ("," if comma else ""))
    return " ".join(marked) + chance.choice(("", "", "", ".", ".", "!", "?"))


def reword(question: str, chance: random.Random) -> str:
    """Vary the beginning, the ending, the case and the punctuation of a question."""
    text = question
    for long, short in SHORTENED.items():
        if text.startswith(long) and chance.random() < 0.25:
            text = short + text[len(long) :]
    if chance.random() < 0.15:
        text = chance.choice(OPENERS) + text
    if chance.random() < 0.1:
        text += chance.choice(CLOSERS)
    if chance.random() < 0.04:
        text = _misspell(text, chance)
    case = chance.random()
    if case < 0.6:
        text = text[0].upper() + text[1:]
    elif case < 0.65:
        text = text.title()
    text = text.replace(" i ", " I ") if case < 0.5 else text
    return text + chance.choice(("", "", "?", "?", "?", ".", "!"))


def _misspell(text: str, chance: random.Random) -> str:
    """Remove a letter from a text."""
    at = chance.randrange(len(text))
    return text[:at] + text[at + 1 :] if text[at].isalpha() and len(text) > 3 else text


def _invented(chance: random.Random) -> str:
    """Return an invented word."""
    consonants, vowels = "bcdfghjklmnpqrstvwxz", "aeiouy"
    syllables = chance.randint(2, 4)
    word = "".join(chance.choice(consonants) + chance.choice(vowels) for _ in range(syllables))
    return word + chance.choice(("", "", "n", "x", "s", "rt"))
