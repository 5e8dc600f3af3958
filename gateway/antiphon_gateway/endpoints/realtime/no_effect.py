"""OpenAI's fields that have no effect here, with their paths in events. This includes fields of the
current API and of the beta.

They are accepted, because some clients stop processing events when they receive an `error` event.
In `session.updated`, they are null or contain the value that applies. Any other field that isn't in
`client_events.py` is ignored and reported.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon_gateway.endpoints.http.fields import Unsupported

_SESSION = (
    "session.audio.input.noise_reduction",
    "session.audio.input.transcription.delay",
    "session.audio.input.transcription.keywords",
    "session.audio.input.transcription.languages",
    "session.audio.output.speed",
    "session.client_secret",
    "session.expires_at",
    "session.id",
    "session.include",
    "session.input_audio_noise_reduction",
    "session.model",
    "session.object",
    "session.prompt",
    "session.reasoning",
    "session.speed",
    "session.temperature",
    "session.tool_choice.server_label",
    "session.tracing",
    "session.truncation",
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
_RESPONSE = (
    "response.prompt",
    "response.reasoning",
    "response.temperature",
    "response.tool_choice.server_label",
)

NO_EFFECT: Mapping[str, Unsupported] = {
    path: Unsupported(any_value=True)
    for path in (
        *_SESSION,
        *(f"item.{each}" for each in _ITEM),
        *_RESPONSE,
        *(f"response.input[].{each}" for each in _ITEM),
    )
}

NULL_IN_SESSION = ("session.include", "session.prompt", "session.tracing")
"""The fields that are null in `session.created` and `session.updated`."""
