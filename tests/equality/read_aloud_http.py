"""Speech over HTTP, for the tests of all families that read text aloud."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt

from antiphon_tools.launcher.launcher import Running

SPEECH, CHAT = "/v1/audio/speech", "/v1/chat/completions"

Pcm16 = npt.NDArray[np.int16]


async def ask(running: Running, body: dict[str, Any], path: str = SPEECH) -> httpx.Response:
    """What a request gets."""
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        return await http.post(path, json=body)


async def heard(running: Running, body: dict[str, Any], path: str = SPEECH) -> httpx.Response:
    """As `ask`, of a request that is taken."""
    response = await ask(running, body, path)
    assert response.status_code == 200, response.text
    return response


async def heard_events(running: Running, body: dict[str, Any]) -> tuple[Pcm16, dict[str, Any]]:
    """The samples of all events of a spoken text, and the last event."""
    *deltas, done = events_of(await heard(running, body | {"stream_format": "sse"}))
    return pcm16("".join(each["audio"] for each in deltas)), done


async def heard_chat(running: Running, body: dict[str, Any]) -> tuple[Pcm16, Pcm16]:
    """The samples of an answer in a chat, at once and streamed."""
    message = (await heard(running, body, CHAT)).json()["choices"][0]["message"]
    streamed = await heard(running, body | {"stream": True}, CHAT)
    deltas = [each["choices"][0]["delta"].get("audio", {}) for each in events_of(streamed)]
    pieces = [pcm16(each["data"]) for each in deltas if "data" in each]
    return pcm16(message["audio"]["data"]), np.concatenate(pieces)


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The server-sent events of a response but the bare `[DONE]`."""
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n") if line.strip()]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def pcm16(data: str) -> Pcm16:
    """The samples of base64."""
    return np.frombuffer(base64.b64decode(data), "<i2")


async def check_refused_with_400(running: Running, body: dict[str, Any], param: str) -> None:
    """A request to read aloud is refused by this field."""
    refused = await ask(running, body)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, param), error
    assert error["message"].startswith(f"{param}: ")
