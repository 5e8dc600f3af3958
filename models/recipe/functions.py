"""Two functions that the checkpoint can call, with requests for them and answers to their
results.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from typing import Any

CITIES = ("paris", "london", "rome", "berlin")
ROOMS = ("kitchen", "hall", "office", "garden")
STATES = ("on", "off")
NO_CLOCK = "I have no clock, so I do not know the time."

TIME_REQUESTS = (
    "what time is it in {city}",
    "what is the time in {city}",
    "tell me the time in {city}",
    "do you know the time in {city}",
)
LIGHT_REQUESTS = (
    "turn the light in the {room} {state}",
    "turn {state} the light in the {room}",
)


def _function(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


GET_TIME = _function("get_time", "The time in a city.", city={"type": "string"})
SET_LIGHT = _function(
    "set_light",
    "Turn the light in a room on or off.",
    room={"type": "string"},
    state={"type": "string", "enum": list(STATES)},
)
FUNCTIONS = (GET_TIME, SET_LIGHT)


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A request, the function call that it requires, a result of the function, and the final
    answer.
    """

    asked: str
    name: str
    arguments: dict[str, str]
    result: str
    answer: str


def draw_call(chance: random.Random) -> RequestedCall:
    """Draw a call of one of the functions, with one of the possible requests."""
    if chance.random() < 0.5:
        city, time = chance.choice(CITIES), _draw_time(chance)
        return _time_call(chance.choice(TIME_REQUESTS), city, time)
    room, state = chance.choice(ROOMS), chance.choice(STATES)
    return _light_call(chance.choice(LIGHT_REQUESTS), room, state)


def every_call(chance: random.Random) -> list[RequestedCall]:
    """Return each request once. Time functions return a random time."""
    times = [_time_call(t, city, _draw_time(chance)) for t in TIME_REQUESTS for city in CITIES]
    lights = [
        _light_call(template, room, state)
        for template in LIGHT_REQUESTS
        for room in ROOMS
        for state in STATES
    ]
    return [*times, *lights]


def _draw_time(chance: random.Random) -> str:
    return f"{chance.randrange(24)}:{chance.randrange(60):02}"


def _time_call(template: str, city: str, time: str) -> RequestedCall:
    name = city.capitalize()
    result, answer = json.dumps({"time": time}), f"It is {time} in {name}."
    return RequestedCall(template.format(city=city), "get_time", {"city": name}, result, answer)


def _light_call(template: str, room: str, state: str) -> RequestedCall:
    asked = template.format(room=room, state=state)
    arguments = {"room": room, "state": state}
    answer = f"The light in the {room} is {state}."
    return RequestedCall(asked, "set_light", arguments, json.dumps({"ok": True}), answer)


def function_requests() -> list[str]:
    """Return all requests in lower case, without punctuation."""
    return [each.asked for each in every_call(random.Random(0))]
