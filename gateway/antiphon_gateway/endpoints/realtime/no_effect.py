"""OpenAI's fields that have no effect here, from both the current API and the beta, by their paths
in events.

They are accepted, because an `error` event would end the event loop of some clients. In
`session.updated`, they are null or contain the value that applies. All other fields that are not in
`client_events.py` are ignored and reported.
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
