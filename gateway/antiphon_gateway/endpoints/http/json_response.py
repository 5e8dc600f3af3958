"""Responses that consist of a single JSON message."""

from __future__ import annotations

import msgspec
from starlette.responses import Response


def json_response(answer: msgspec.Struct, status: int = 200) -> Response:
    """Return the message as JSON."""
    return Response(msgspec.json.encode(answer), status, media_type="application/json")
