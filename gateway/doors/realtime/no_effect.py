"""OpenAI's fields without effect here, of today's API and of the beta, by their paths in events.

They are accepted: an `error` ends the loop of some clients. `session.updated` has null in their
place, or what holds. Any other field that `client_events.py` does not have is ignored and reported.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.doors.http.fields import Unsupported

_SESSION = (
    "audio.input.noise_reduction",
    "audio.input.transcription.delay",
    "audio.input.transcription.keywords",
    "audio.input.transcription.languages",
    "audio.output.speed",
    "client_secret",
    "expires_at",
    "id",
    "include",
    "input_audio_noise_reduction",
    "model",
    "object",
    "prompt",
    "reasoning",
    "speed",
    "temperature",
    "tool_choice.server_label",
    "tracing",
    "truncation",
)
_ITEM = (
    "approval_request_id",
    "approve",
    "content[].detail",
    "content[].id",
    "content[].image_url",
    "error",
    "object",
    "reason",
    "server_label",
    "status",
    "tools",
)
_RESPONSE = ("prompt", "reasoning", "temperature", "tool_choice.server_label")

NO_EFFECT: Mapping[str, Unsupported] = {
    path: Unsupported(any_value=True)
    for path in (
        *(f"session.{each}" for each in _SESSION),
        *(f"item.{each}" for each in _ITEM),
        *(f"response.{each}" for each in _RESPONSE),
        *(f"response.input[].{each}" for each in _ITEM),
    )
}
