"""What a client can ask for, under the names of the pipeline's edges to it."""

from __future__ import annotations

TEXT, IMAGE, AUDIO = "text", "image", "audio"
OUTPUTS = frozenset({TEXT, IMAGE, AUDIO})
KNOWN = "there are 'text', 'image' and 'audio'"
TOOL_CALLS = "tool_calls"
"""What comes beside those where functions may be called; nobody asks for it by name."""
