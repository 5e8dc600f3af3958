"""Language names in requests."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated

from msgspec import Meta

Language = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z][A-Za-z0-9_ -]*$")]
"""A language code such as `en`, or a language name. It is interpreted by the model."""

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
"""Maps ISO 639 codes to English names."""


def language_choice(given: str, choices: Collection[str]) -> str:
    """Return the model's name for a language. If the model has none, return the given text
    unchanged.

    The client can use a code, such as `en` or `en-US`.
    """
    code = given.replace("_", "-").partition("-")[0].casefold()
    name = _NAMES.get(code, "")
    return name if name in map(str.casefold, choices) else given
