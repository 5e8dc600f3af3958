"""Responses in the realtime API's format."""

from __future__ import annotations

from typing import Any

from antiphon.errors import AntiphonError
from antiphon.values.answer import Usage
from antiphon_gateway.conversations.events import Response
from antiphon_gateway.endpoints.http.errors import api_code
from antiphon_gateway.endpoints.realtime.item_json import item_json
from antiphon_gateway.endpoints.realtime.settings import (
    format_json,
    max_tokens_json,
    modalities_json,
)


def response_json(response: Response, conversation_id: str) -> dict[str, Any]:
    """Return the object `realtime.response`."""
    settings = response.settings
    return {
        "object": "realtime.response",
        "id": response.id,
        "status": response.status,
        "status_details": _details(response),
        "output": [item_json(item) for item in response.items],
        "conversation_id": conversation_id if not response.out_of_band else None,
        "output_modalities": modalities_json(settings),
        "max_output_tokens": max_tokens_json(settings),
        "audio": {
            "output": {"format": format_json(settings.output_format), "voice": settings.voice}
        },
        "metadata": response.metadata,
        "usage": None if response.usage is None else _usage(response.usage),
    }


def _details(response: Response) -> dict[str, Any] | None:
    """Return the reason why the response is incomplete, or None."""
    if response.error is not None:
        return {"type": response.status, "error": _error(response.error)}
    if response.reason:
        return {"type": response.status, "reason": response.reason}
    return None


def _error(error: AntiphonError) -> dict[str, Any]:
    return {
        "type": "server_error" if error.retryable else "invalid_request_error",
        "code": api_code(error),
        "message": error.message,
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """Return the usage as the realtime API counts it. A codec frame counts as one audio token."""
    output = usage.completion_tokens + usage.completion_audio_frames
    return {
        "total_tokens": usage.prompt_tokens + output,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens
            - usage.prompt_audio_tokens
            - usage.prompt_image_tokens,
            "audio_tokens": usage.prompt_audio_tokens,
            "image_tokens": usage.prompt_image_tokens,
            "cached_tokens": usage.prompt_cached_tokens,
        },
        "output_token_details": {
            "text_tokens": usage.completion_tokens,
            "audio_tokens": usage.completion_audio_frames,
        },
    }
