"""The outputs that a client can request. Each one has the same name as the pipeline edge that leads
to the client.
"""

from __future__ import annotations

TEXT, IMAGE, AUDIO = "text", "image", "audio"
OUTPUTS = frozenset({TEXT, IMAGE, AUDIO})
KNOWN = "use 'text', 'image' or 'audio'"
TOOL_CALLS = "tool_calls"
"""An additional output for function calls. Clients don't request it, because it is added
automatically if the request allows function calls.
"""
