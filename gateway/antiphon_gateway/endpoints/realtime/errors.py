"""Errors in the realtime API's format."""

from __future__ import annotations

from typing import Any

from antiphon.errors import (
    AntiphonError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    NotImplementedYet,
)
from antiphon_gateway.conversations.errors import NoAudio, NoResponse, NoSuchItem, ResponseUnderWay
from antiphon_gateway.endpoints.http.errors import api_code

_API_CODES: dict[type[AntiphonError], str] = {
    NoAudio: "input_audio_buffer_commit_empty",
    NoResponse: "response_cancel_not_active",
    ResponseUnderWay: "conversation_already_has_active_response",
}

# Clients retry only after a `server_error`.
_CLIENTS_OWN = InvalidArgument | FailedPrecondition | NotFound | NotImplementedYet


def error_json(error: AntiphonError, event_id: str | None) -> dict[str, Any]:
    """Return an `error` event. `event_id` is the ID of the client event that caused it."""
    return {"type": "error", "error": {**error_details(error), "event_id": event_id}}


def error_details(error: AntiphonError) -> dict[str, Any]:
    """Return the details of an error. They are the same in all types of events."""
    return {
        "type": "invalid_request_error" if isinstance(error, _CLIENTS_OWN) else "server_error",
        "code": _code(error),
        "message": error.message,
        "param": error.field or None,
    }


def _code(error: AntiphonError) -> str:
    if isinstance(error, NoSuchItem):
        return f"item_{error.use}_invalid_item_id"
    return _API_CODES.get(type(error)) or api_code(error)
