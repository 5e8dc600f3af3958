"""How a language is named in a request."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Language = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_ -]*$")]
"""A code such as `en`, or a name; the model reads it."""
