"""The parts of OpenAI's messages for `/v1/images/generations` that this gateway reads or writes.

The extensions are the sampling fields, `options`, and a field for each additional sampling stage,
named after the stage's role.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from antiphon_gateway.endpoints.http.stage_sampling import StageSampling
from antiphon_gateway.endpoints.openai.label import Label


class ImagesBody(StageSampling, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request. `size` is "auto" or one of the choices of the model's option `size`."""

    prompt: str
    model: str = ""
    n: int | None = None
    size: str | None = None
    response_format: str | None = None
    output_format: str | None = None
    options: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)
    # Only values without effect are accepted (see request.UNSUPPORTED).
    background: Any = None
    output_compression: Any = None
    partial_images: Any = None
    quality: Any = None
    stream: Any = None
    style: Any = None
    # These fields have no effect.
    moderation: Label | None = None
    user: Label | None = None


(TEXT_FIELD,) = (each.name for each in msgspec.structs.fields(ImagesBody) if each.required)
"""The name of the only required field, which contains the prompt."""


class GeneratedImage(msgspec.Struct, frozen=True):
    """A file in base64."""

    b64_json: str


class ImageInputDetails(msgspec.Struct, frozen=True):
    """Details of the input tokens."""

    text_tokens: int
    image_tokens: int = 0


class ImageOutputDetails(msgspec.Struct, frozen=True):
    """Details of the output tokens."""

    image_tokens: int
    text_tokens: int


class ImagesUsage(msgspec.Struct, frozen=True):
    """The usage of all images. The prompt is counted once."""

    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: ImageInputDetails
    output_tokens_details: ImageOutputDetails


class ImagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The images. `size` is the size of the first file, in the form "WIDTHxHEIGHT"."""

    created: int
    data: tuple[GeneratedImage, ...]
    output_format: str
    size: str | UnsetType = UNSET
    usage: ImagesUsage
