"""Texts that are chosen by the client and have no effect."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

Label = Annotated[str, Meta(max_length=512)]
"""A text of limited length. The limit is at least as high as OpenAI's."""
