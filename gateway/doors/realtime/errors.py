"""Errors as the realtime API tells them."""

from __future__ import annotations

from typing import Any

from antiphon.errors import AntiphonError, InvalidArgument


class RealtimeError(InvalidArgument):
    """An error with a code of the API's own."""

    def __init__(self, message: str, code: str, field: str = "") -> None:
        super().__init__(message, field=field)
        self.api_code = code


def error_event(error: AntiphonError, event_id: str | None) -> dict[str, Any]:
    """The event `error`; `event_id` is the client's of what it did."""
    code = error.api_code if isinstance(error, RealtimeError) else error.code.value
    kind = "invalid_request_error" if isinstance(error, InvalidArgument) else "server_error"
    told = {
        "type": kind,
        "code": code,
        "message": error.message,
        "param": error.field or None,
        "event_id": event_id,
    }
    return {"type": "error", "error": told}
