"""What the demonstration says, before it is your turn."""

from __future__ import annotations

from dataclasses import dataclass

from tools.demo.measure import MeasuredAnswer


@dataclass(frozen=True, slots=True)
class Question:
    """Something to say to the model; `voice` is the index of the one that answers."""

    text: str
    voice: int = 0


SCRIPT = (
    Question("Hello!"),
    Question("What is antiphon?"),
    Question("How does it work?"),
    Question("How many days are in February?"),
    Question("Repeat after me: the sea is blue and warm."),
    Question("What is the high voice called?", voice=1),
)


@dataclass(frozen=True, slots=True)
class ScriptTurn:
    """A question, the name of the voice that answered, and the answer with its times."""

    question: str
    voice: str
    answer: MeasuredAnswer
