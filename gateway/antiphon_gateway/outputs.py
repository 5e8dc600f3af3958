"""The outputs that a client can request. Their names match those of the pipeline edges that lead to
the client.
"""

from __future__ import annotations

TEXT, IMAGE, AUDIO = "text", "image", "audio"
OUTPUTS = frozenset({TEXT, IMAGE, AUDIO})
KNOWN = "there are 'text', 'image' and 'audio'"
TOOL_CALLS = "tool_calls"
"""An extra output for function calls. It is added automatically if the request allows them, so
clients do not ask for it.
"""
