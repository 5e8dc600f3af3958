"""What a client can ask for, under the names of the pipeline's edges to it."""

from __future__ import annotations

TEXT, AUDIO = "text", "audio"
OUTPUTS = frozenset({TEXT, AUDIO})
