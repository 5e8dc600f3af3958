"""Converts the events of a prompt's segments to OpenAI's image response."""

from __future__ import annotations

import time

import msgspec
from msgspec import UNSET

from antiphon.errors import AntiphonError, UnusableOutput
from antiphon_gateway.endpoints.openai.audio import AnswerEvent
from antiphon_gateway.endpoints.openai.endpoint import JSON
from antiphon_gateway.endpoints.openai.image_generation.schema import (
    TEXT_FIELD,
    GeneratedImage,
    ImageInputDetails,
    ImageOutputDetails,
    ImagesAnswer,
    ImagesUsage,
)
from antiphon_gateway.media.audio_out import to_base64
from antiphon_gateway.media.image_size import png_size
from antiphon_gateway.sessions.events import (
    ImageFile,
    ImageProduced,
    SegmentFinished,
    SegmentUsage,
)


class ImageAnswers:
    """Collects the images of all choices."""

    streamed = False
    content_type = JSON
    encoding = None

    def __init__(self, choices: int) -> None:
        self._images: list[list[ImageFile]] = [[] for _ in range(choices)]
        self._left = choices
        self._usage: SegmentUsage | None = None

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """Return the complete answer after the last event. Before that, returns b"".

        Raises `UnusableOutput` if a choice doesn't contain an image.
        """
        match event:
            case ImageProduced():
                self._images[choice] += event.images
            case SegmentFinished():
                if not self._images[choice]:
                    raise UnusableOutput(
                        "the model generated no image; try another prompt or seed", field=TEXT_FIELD
                    )
                known = self._usage
                self._usage = known.with_choice(event.usage) if known else event.usage
                self._left -= 1
                if not self._left:
                    return self._whole(self._usage)
        return b""

    def fail(self, error: AntiphonError) -> None:
        """Do nothing, because this answer is never streamed."""

    def _whole(self, usage: SegmentUsage) -> bytes:
        images = [each for choice in self._images for each in choice]
        size = png_size(images[0].file)
        answer = ImagesAnswer(
            created=int(time.time()),
            data=tuple(GeneratedImage(to_base64(each.file)) for each in images),
            output_format=images[0].media_type.removeprefix("image/"),
            size=f"{size.width}x{size.height}" if size else UNSET,
            usage=_usage(usage),
        )
        return msgspec.json.encode(answer)


def _usage(usage: SegmentUsage) -> ImagesUsage:
    read, drawn, written = (
        usage.prompt_tokens,
        usage.completion_image_tokens,
        usage.completion_tokens,
    )
    return ImagesUsage(
        input_tokens=read,
        output_tokens=drawn + written,
        total_tokens=read + drawn + written,
        input_tokens_details=ImageInputDetails(text_tokens=read),
        output_tokens_details=ImageOutputDetails(image_tokens=drawn, text_tokens=written),
    )
