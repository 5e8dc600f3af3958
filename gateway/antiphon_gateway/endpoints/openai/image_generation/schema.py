"""OpenAI's messages of `/v1/images/generations`, as far as they are read or written here.

The sampling fields, those of further stages under their roles, and `options` are additions.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from antiphon_gateway.endpoints.http.stage_sampling import StageSampling
from antiphon_gateway.endpoints.openai.label import Label


class ImagesBody(StageSampling, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request. `size` is one of the choices of the model's option `size`, or "auto"."""

    prompt: str
    model: str = ""
    n: int | None = None
    size: str | None = None
    response_format: str | None = None
    output_format: str | None = None
    options: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    # Accepted with harmless values only: see request.UNSUPPORTED.
    background: Any = None
    output_compression: Any = None
    partial_images: Any = None
    quality: Any = None
    stream: Any = None
    style: Any = None
    # Without effect.
    moderation: Label | None = None
    user: Label | None = None


(TEXT_FIELD,) = (each.name for each in msgspec.structs.fields(ImagesBody) if each.required)
"""The name of the only required field, the text that is drawn."""


class GeneratedImage(msgspec.Struct, frozen=True):
    """A file as base64."""

    b64_json: str


class ImageInputDetails(msgspec.Struct, frozen=True):
    """Of the input tokens."""

    text_tokens: int
    image_tokens: int = 0


class ImageOutputDetails(msgspec.Struct, frozen=True):
    """Of the output tokens."""

    image_tokens: int
    text_tokens: int


class ImagesUsage(msgspec.Struct, frozen=True):
    """What all images cost. The prompt counts once."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: ImageInputDetails
    output_tokens_details: ImageOutputDetails


class ImagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The images. `size`, "WIDTHxHEIGHT", is that of the first file."""

    created: int
    data: tuple[GeneratedImage, ...]
    output_format: str
    size: str | UnsetType = UNSET
    usage: ImagesUsage
