"""The repertoire of the checkpoint: exchanges, and the words that it can say."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
REPERTOIRE_FILE, WORDS_FILE = HERE / "repertoire.txt", HERE / "words.txt"

# These answers are not part of the file, because each of them answers a type of question.
UNKNOWN = "I do not know that yet."
UNSPOKEN = "I cannot say that, because I do not know every word in it."
HEARD = "I hear you, but I only understand written words."
# Used since the checkpoint understands spoken words. The talker and the vocabulary do not include
# it.
NOT_UNDERSTOOD = "I hear sound, but I do not understand it."

UNITS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]
MONTHS = {
    "January": "thirty one",
    "February": "twenty eight",
    "March": "thirty one",
    "April": "thirty",
    "May": "thirty one",
    "June": "thirty",
    "July": "thirty one",
    "August": "thirty one",
    "September": "thirty",
    "October": "thirty one",
    "November": "thirty",
    "December": "thirty one",
}
ORDINALS = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
]
WORD = re.compile(r"[A-Za-z]+|[0-9]")


@dataclass(frozen=True, slots=True)
class Exchange:
    """An answer, and the questions that lead to it, in lower case without punctuation."""

    answer: str
    questions: tuple[str, ...]


def load_repertoire() -> list[Exchange]:
    """Return all exchanges, including generated exchanges about numbers and dates."""
    written = []
    for line in REPERTOIRE_FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            answer, *questions = (part.strip() for part in line.split("|"))
            written.append(Exchange(answer, tuple(questions)))
    return [*written, *_numbers(), *_dates()]


def say_number(number: int) -> str:
    """Return a number from 0 to 99 in words."""
    if number < len(UNITS):
        return UNITS[number]
    tens, unit = divmod(number, 10)
    return TENS[tens - 2] + (f" {UNITS[unit]}" if unit else "")


def _numbers() -> list[Exchange]:
    found = []
    for number in range(21):
        this, following = say_number(number), say_number(number + 1)
        answer = f"{following.capitalize()} comes after {this}."
        asked = (f"what comes after {this}", f"which number comes after {this}")
        found.append(Exchange(answer, asked))
    for one, two in itertools.product(range(1, 6), range(1, 6)):
        this, other, total = say_number(one), say_number(two), say_number(one + two)
        answer = f"{this.capitalize()} and {other} is {total}."
        sums = (f"what is {this} plus {other}", f"how much is {this} and {other}")
        digits = (f"what is {one} plus {two}", f"what is {one} + {two}")
        found.append(Exchange(answer, sums + digits))
    return found


def _dates() -> list[Exchange]:
    found = []
    for day, following in zip(DAYS, DAYS[1:] + DAYS[:1], strict=True):
        after = (f"what comes after {day.lower()}", f"which day comes after {day.lower()}")
        found.append(Exchange(f"The day after {day} is {following}.", after))
    names = list(MONTHS)
    for at, (month, days) in enumerate(MONTHS.items()):
        low, following = month.lower(), names[(at + 1) % 12]
        after = (f"what comes after {low}", f"which month comes after {low}")
        found.append(Exchange(f"The month after {month} is {following}.", after))
        length = (f"how many days are in {low}", f"how long is {low}", f"how many days has {low}")
        found.append(Exchange(f"{month} has {days} days.", length))
        ordinal = (
            f"what is the {ORDINALS[at]} month",
            f"which month is number {say_number(at + 1)}",
        )
        found.append(Exchange(f"The {ORDINALS[at]} month is {month}.", ordinal))
    return found


def spoken_words() -> list[str]:
    """Return the sorted words that can be said, in lower case. Digits are spoken as words."""
    texts = [exchange.answer for exchange in load_repertoire()] + [UNKNOWN, UNSPOKEN, HEARD]
    texts += [WORDS_FILE.read_text(), *UNITS, *TENS]
    found = {word.lower() for text in texts for word in WORD.findall(text)}
    return sorted(word for word in found if not word.isdigit())


def written_forms() -> set[str]:
    """Return every word in the spelling of answers and questions, and every word that can be
    said.
    """
    forms = set(spoken_words())
    for exchange in load_repertoire():
        for text in (exchange.answer, *exchange.questions):
            forms.update(re.findall(r"[A-Za-z]+", text))
    for text in (UNKNOWN, UNSPOKEN, HEARD):
        forms.update(re.findall(r"[A-Za-z]+", text))
    return forms
