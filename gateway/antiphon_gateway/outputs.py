"""The outputs that a client can request, which have the names of the pipeline's edges to the
client.
"""

from __future__ import annotations

TEXT, IMAGE, AUDIO = "text", "image", "audio"
OUTPUTS = frozenset({TEXT, IMAGE, AUDIO})
KNOWN = "there are 'text', 'image' and 'audio'"
TOOL_CALLS = "tool_calls"
"""An output that is added if functions may be called. Clients do not request it by name."""
