"""The least that a WebSocket server in Python does with an audio event."""

from __future__ import annotations

import socket

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket


async def echo(websocket: WebSocket) -> None:
    """Decode what comes, and send it back."""
    await websocket.accept()
    async for data in websocket.iter_text():
        event = msgspec.json.decode(data)
        await websocket.send_text(msgspec.json.encode(event).decode())


def serve(listener: int) -> None:
    """Serve on a listening socket."""
    app = Starlette(routes=[WebSocketRoute("/", echo)])
    config = uvicorn.Config(app, ws_per_message_deflate=False, log_level="error", lifespan="off")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=listener)])
