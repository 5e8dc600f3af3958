"""What a client can ask for, under the names of the pipeline's edges to it."""

from __future__ import annotations

TEXT, IMAGE, AUDIO = "text", "image", "audio"
OUTPUTS = frozenset({TEXT, IMAGE, AUDIO})
KNOWN = "there are 'text', 'image' and 'audio'"
