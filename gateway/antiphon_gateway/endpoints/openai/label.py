"""Words of the client's own that have no effect."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Label = Annotated[str, Meta(max_length=512)]
"""As long as OpenAI allows it, or longer."""
