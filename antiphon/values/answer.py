"""The usage and function calls of an answer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from antiphon.errors import DataLoss
from antiphon.values.brief import brief


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a request used, in tokens, audio codec frames, and image positions."""

    prompt_tokens: int = 0
    prompt_audio_tokens: int = 0
    prompt_image_tokens: int = 0
    prompt_cached_tokens: int = 0
    completion_tokens: int = 0
    completion_audio_frames: int = 0
    completion_image_tokens: int = 0


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function call. `arguments` is a JSON object as text, which `parsed` decodes.

    Send its result with `Message.tool(call, ...)`, after the message that contains the call.
    """

    id: str
    name: str
    arguments: str

    def __repr__(self) -> str:
        return brief(self)

    def parsed(self) -> dict[str, Any]:
        """Return the arguments by name. Raises `DataLoss` if they are not a JSON object."""
        try:
            value = json.loads(self.arguments)
        except ValueError as error:
            raise DataLoss(f"the arguments of {self.name} are not valid JSON: {error}") from error
        if not isinstance(value, dict):
            raise DataLoss(f"the arguments of {self.name} are not a JSON object")
        return value
