"""Example requests for the reference page, as curl commands."""

from __future__ import annotations

from collections.abc import Mapping

JSON_EXAMPLES: Mapping[str, str] = {
    "/v1/chat/completions": """{
  "model": "MODEL",
  "messages": [{"role": "user", "content": "What is antiphon?"}],
  "modalities": ["text", "audio"],
  "audio": {"voice": "alloy", "format": "wav"}
}""",
    "/v1/audio/speech": """{
  "model": "MODEL",
  "input": "The sea is blue and warm.",
  "response_format": "wav"
}""",
    "/v1/images/generations": """{"model": "MODEL", "prompt": "A grey cat."}""",
}
"""Maps paths to example bodies. `MODEL` stands for the name of the served model."""

FORM_EXAMPLES: Mapping[str, Mapping[str, str]] = {
    "/v1/audio/transcriptions": {"model": "MODEL", "file": "@recording.wav"},
    "/v1/audio/translations": {"model": "MODEL", "file": "@recording.wav"},
}
"""Maps paths to example form fields. A value that starts with `@` is a file name."""


def curl_example(method: str, path: str) -> str:
    """Return the command for a local server without API keys."""
    url = f"http://localhost:8000{path.replace('{name}', 'MODEL')}"
    if path in JSON_EXAMPLES:
        return (
            f"curl {url} \\\n  -H 'content-type: application/json' \\\n  -d '{JSON_EXAMPLES[path]}'"
        )
    if path in FORM_EXAMPLES:
        fields = "".join(f" \\\n  -F {name}={it}" for name, it in FORM_EXAMPLES[path].items())
        return f"curl {url}{fields}"
    return f"curl {url}" if method == "get" else ""
