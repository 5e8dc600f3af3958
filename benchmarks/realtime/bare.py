"""A bare Starlette application that performs the minimum work of any realtime server.

It parses each event, decodes its base64, checks the number of samples, and sends the same messages
as the gateway: `session.created`, `session.updated` and `input_audio_buffer.cleared`. It neither
stores a conversation nor runs a model.
"""

from __future__ import annotations

import itertools
import socket

import msgspec
import pybase64
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket

BYTES_PER_SAMPLE = 2
MOST_SAMPLES = 24_000 * 600


async def converse(websocket: WebSocket) -> None:
    """Serve a connection. Closes it with 1009 if it buffers more than `MOST_SAMPLES`."""
    await websocket.accept()
    numbers = itertools.count(1)

    async def send(kind: str) -> None:
        event = {"type": kind, "event_id": f"event_{next(numbers)}"}
        await websocket.send_text(msgspec.json.encode(event).decode())

    await send("session.created")
    samples = 0
    async for data in websocket.iter_text():
        event = msgspec.json.decode(data)
        match event["type"]:
            case "input_audio_buffer.append":
                audio = pybase64.b64decode(event["audio"], validate=True)
                samples += len(audio) // BYTES_PER_SAMPLE
                if samples > MOST_SAMPLES:
                    await websocket.close(1009)
                    return
            case "input_audio_buffer.clear":
                samples = 0
                await send("input_audio_buffer.cleared")
            case "session.update":
                await send("session.updated")


def server() -> uvicorn.Server:
    """Return a server with the HTTP and WebSocket implementations that the gateway uses."""
    config = uvicorn.Config(
        Starlette(routes=[WebSocketRoute("/v1/realtime", converse)]),
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        log_level="error",
        lifespan="off",
    )
    return uvicorn.Server(config)


def serve(listener: int) -> None:
    """Serve on a listening socket until the process is terminated."""
    server().run(sockets=[socket.socket(fileno=listener)])
