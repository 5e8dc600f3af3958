"""The attachments of a request's messages, both as they were received and as they are sent to the
stages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, InvalidArgument, NotImplementedYet
from antiphon.v1 import stage_pb2
from antiphon.values.conversation import (
    AudioPart,
    ConversationMessage,
    ImagePart,
    TextPart,
    VideoPart,
)
from antiphon_gateway.admission.byte_budget import ByteBudget
from antiphon_gateway.media.audio_in import AudioLimits, Recording, check_recordings
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.remote import UrlFetcher
from antiphon_gateway.media.vision_in import IMAGE, VIDEO, File

AUDIO = "audio"
FieldsByKind = Mapping[str, Sequence[str]]
"""The paths of all recordings, images and videos in the request."""


@dataclass(frozen=True, slots=True)
class MediaInput:
    """Provides the recordings, images and videos of requests, by fetching URLs and decoding files.

    Decoded data counts towards `memory`.
    """

    fetcher: UrlFetcher
    decoder: MediaDecoder
    memory: ByteBudget

    @classmethod
    def of(cls, config: GatewayConfig, memory: ByteBudget) -> MediaInput:
        """Return an instance with the given settings."""
        decoder = MediaDecoder(config.media.decoder_processes)
        return cls(UrlFetcher(config, memory), decoder, memory)

    async def close(self) -> None:
        """Kill all decoding processes. Nothing is fetched or decoded after this."""
        self.fetcher.close()
        await self.decoder.close()


@dataclass(frozen=True, slots=True)
class Attachments:
    """Recordings, images and videos, in the order in which the message parts refer to them."""

    recordings: list[Recording] = field(default_factory=list)
    images: list[File] = field(default_factory=list)
    videos: list[File] = field(default_factory=list)

    @property
    def fields(self) -> FieldsByKind:
        """The path of each attachment in the request, by type."""
        kinds: dict[str, Sequence[Recording | File]] = {
            AUDIO: self.recordings,
            IMAGE: self.images,
            VIDEO: self.videos,
        }
        return {kind: tuple(each.field for each in items) for kind, items in kinds.items()}

    def add_recording(self, recording: Recording) -> AudioPart:
        """Append a recording. Returns the part that refers to it."""
        self.recordings.append(recording)
        return AudioPart(len(self.recordings) - 1)

    def add_image(self, file: File) -> ImagePart:
        """Append an image. Returns the part that refers to it."""
        self.images.append(file)
        return ImagePart(len(self.images) - 1)

    def add_video(self, file: File) -> VideoPart:
        """Append a video. Returns the part that refers to it."""
        self.videos.append(file)
        return VideoPart(len(self.videos) - 1)


def name_field(error: AntiphonError, names: Mapping[str, str]) -> None:
    """In an error, replace the name of a field, recording, image or video with the name that the
    client uses.

    Options are renamed everywhere in the message, because an error about one option may mention
    others.
    """
    path = names.get(error.field, error.field)
    message = error.message.replace(error.field, path, 1)
    for name, sent in names.items():
        if name.startswith("options."):
            message = re.sub(rf"\b{re.escape(name)}\b", sent, message)
    error.message, error.args, error.field = message, (message,), path


def check_conversation(
    messages: tuple[ConversationMessage, ...],
    fields: FieldsByKind,
    reader: stage_pb2.DescribeResponse,
    config: GatewayConfig,
    tools: Sequence[str] = (),
) -> None:
    """Validate a conversation and the number of its files, given their paths. No file has been read
    at this point.

    Raises `NotImplementedYet` if the stage that reads the messages doesn't accept a type of input,
    and `InvalidArgument` if a limit is exceeded. The error contains the field.
    """
    _check_parts(messages, config.limits.max_parts)
    if reader.max_input_text_bytes:
        _check_text(messages, reader, sum(len(each.encode()) for each in tools))
    _check(fields[IMAGE], IMAGE, reader.max_input_images, reader)
    _check(fields[VIDEO], VIDEO, reader.max_input_videos, reader)
    limits = audio_limits(reader, config)
    check_recordings(fields[AUDIO], rate_hz=reader.input_sample_rate_hz, limits=limits)


def audio_limits(reader: stage_pb2.DescribeResponse, config: GatewayConfig) -> AudioLimits:
    """Return this stage's limits on recordings."""
    return AudioLimits(
        recordings=config.limits.max_recordings,
        each_s=config.limits.max_recording_s,
        all_s=min(config.limits.max_audio_s, reader.max_input_audio_s),
    )


def _check_parts(messages: tuple[ConversationMessage, ...], most: int) -> None:
    """Raise an error if a conversation has too many parts. Each message counts as at least one
    part.
    """
    parts = 0
    for index, message in enumerate(messages):
        parts += len(message.parts)
        if parts > most:
            field = f"messages[{index}]"
            raise InvalidArgument(f"{field}: the request has more than {most} parts", field=field)


def _check_text(
    messages: tuple[ConversationMessage, ...], reader: stage_pb2.DescribeResponse, size: int
) -> None:
    """If the text is too long for the context, raise an error before anything is sent.

    `size` is the size of the functions.
    """
    most = reader.max_input_text_bytes
    for index, message in enumerate(messages):
        for part in message.parts:
            if isinstance(part, TextPart):
                size += len(part.text.encode(errors="surrogatepass"))
        size += sum(len(call.name) + len(call.arguments.encode()) for call in message.tool_calls)
        if size > most:
            field = f"messages[{index}]"
            raise InvalidArgument(
                f"{field}: with this text, the request has {size} bytes of text; the maximum "
                f"for the context limit of {reader.context_limit} positions is {most}",
                field=field,
            )


def _check(fields: Sequence[str], kind: str, most: int, reader: stage_pb2.DescribeResponse) -> None:
    """Raise an error if the stage doesn't accept files of this type or if there are too many."""
    if fields and kind not in reader.input_kinds:
        raise NotImplementedYet(
            f"{fields[0]}: this model's {reader.role} accepts {', '.join(reader.input_kinds)}, "
            f"but not {kind}s with its engine {reader.engine!r}; if the checkpoint supports "
            f"them, serve the {reader.role} with `engine: vllm`",
            field=fields[0],
        )
    if len(fields) > most:
        raise InvalidArgument(
            f"{fields[most]}: the request has more than {most} {kind}s", field=fields[most]
        )
