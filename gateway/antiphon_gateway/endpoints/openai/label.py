"""Text that is chosen by the client and has no effect."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Label = Annotated[str, Meta(max_length=512)]
"""Text of limited length. The limit is at least as high as OpenAI's."""
