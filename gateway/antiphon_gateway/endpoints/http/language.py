"""How a language is named in a request."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

Language = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_ -]*$")]
"""A code such as `en`, or a name; the model reads it."""

_NAMES = {
    "ar": "arabic",
    "de": "german",
    "en": "english",
    "es": "spanish",
    "fr": "french",
    "it": "italian",
    "ja": "japanese",
    "ko": "korean",
    "pt": "portuguese",
    "ru": "russian",
    "zh": "chinese",
}
"""English names, by ISO 639's codes."""


def language_choice(given: str, choices: Collection[str]) -> str:
    """The name of the language among a model's choices where a client gave its code, `en` or
    `en-US`; else what it gave."""
    code = given.replace("_", "-").partition("-")[0].casefold()
    name = _NAMES.get(code, "")
    return name if name in map(str.casefold, choices) else given
