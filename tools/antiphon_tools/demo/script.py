"""The scripted questions of the demonstration."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from antiphon.client.tools import Function
from antiphon_tools.demo.measure import MeasuredAnswer


@dataclass(frozen=True, slots=True)
class Question:
    """A question for the model.

    `voice` is the index of the voice for the answer. If `recording` is set to a WAV file, the
    question is sent as audio. The answer may call `functions`. Their result is always `DONE`.
    """

    text: str
    voice: int = 0
    recording: Path | None = None
    functions: tuple[Function, ...] = ()

    def for_inputs(self, kinds: Collection[str]) -> Question | None:
        """Adapt the question to the input types of a model. Returns None if this is not
        possible.
        """
        if self.functions and "tools" not in kinds:
            return None
        return self if "audio" in kinds else replace(self, recording=None)


# This was generated with espeak-ng -v en-gb+f2 -s 150 "What are the stages?", at 16 kHz. The model
# was not trained on this voice.
SPOKEN = Path(__file__).parent / "stages.wav"

_NAME: dict[str, object] = {"type": "string"}


def _object(**properties: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties)}


GET_TIME = Function("get_time", "The time in a city.", _object(city=_NAME))
SET_LIGHT = Function(
    "set_light",
    "Turn the light in a room on or off.",
    _object(room=_NAME, state={**_NAME, "enum": ["on", "off"]}),
)
DONE = json.dumps({"ok": True})

SCRIPT = (
    Question("Hello!"),
    Question("What is antiphon?"),
    Question("How does it work?"),
    Question("What are the stages?", recording=SPOKEN),
    Question("How many days are in February?"),
    Question("Repeat after me: the sea is blue and warm."),
    Question("What is the high voice called?", voice=1),
    Question("Turn the light in the kitchen on.", functions=(GET_TIME, SET_LIGHT)),
)


@dataclass(frozen=True, slots=True)
class ScriptTurn:
    """A question, the name of the voice that answered, and the answer with its times."""

    question: str
    voice: str
    answer: MeasuredAnswer
