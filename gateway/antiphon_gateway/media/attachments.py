"""What the parts of a request's messages refer to, as it came and as the stages get it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from antiphon.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    ImagePart,
    TextPart,
    VideoPart,
)
from antiphon.deployment.schema import GatewayConfig
from antiphon.errors import AntiphonError, InvalidArgument, NotImplementedYet
from antiphon.v1 import stage_pb2
from antiphon_gateway.byte_budget import ByteBudget
from antiphon_gateway.media.audio_in import (
    AudioLimits,
    Recording,
    check_recordings,
    decode_recordings,
)
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.remote import Download, RemoteUrl, UrlFetcher
from antiphon_gateway.media.sent_recordings import SentRecordings
from antiphon_gateway.media.vision_in import IMAGE, VIDEO, File, read_files
from antiphon_gateway.metrics import Refused

Attachment = TypeVar("Attachment", Recording, File)


@dataclass(frozen=True, slots=True)
class MediaInput:
    """What brings the recordings, images and videos of requests: fetches URLs, decodes files."""

    fetcher: UrlFetcher
    decoder: MediaDecoder

    @classmethod
    def of(
        cls, config: GatewayConfig, uploads: ByteBudget, count: Callable[[Refused], None]
    ) -> MediaInput:
        """What the settings allow; fetched files take from the budget of uploads, and `count`
        receives the refusals."""
        fetcher = UrlFetcher(config, uploads, count=count)
        return cls(fetcher, MediaDecoder(config.decoder_processes))

    async def close(self) -> None:
        """Kill what is being decoded; fetch and decode nothing more."""
        self.fetcher.close()
        await self.decoder.close()


@dataclass(frozen=True, slots=True)
class Attachments:
    """Recordings, images and videos in the order of the parts that refer to them."""

    recordings: list[Recording] = field(default_factory=list)
    images: list[File] = field(default_factory=list)
    videos: list[File] = field(default_factory=list)

    def field_by_input(self) -> dict[str, str]:
        """The path in the request of each, by its name in the conversation."""
        kinds: dict[str, Sequence[Recording | File]] = {
            "audio": self.recordings,
            IMAGE: self.images,
            VIDEO: self.videos,
        }
        return {
            f"{kind}.{index}": each.field
            for kind, items in kinds.items()
            for index, each in enumerate(items)
        }

    def add_recording(self, recording: Recording) -> AudioPart:
        """Append it; the part that refers to it."""
        self.recordings.append(recording)
        return AudioPart(len(self.recordings) - 1)

    def add_image(self, file: File) -> ImagePart:
        """Append it; the part that refers to it."""
        self.images.append(file)
        return ImagePart(len(self.images) - 1)

    def add_video(self, file: File) -> VideoPart:
        """Append it; the part that refers to it."""
        self.videos.append(file)
        return VideoPart(len(self.videos) - 1)


def name_field(error: AntiphonError, names: Mapping[str, str]) -> None:
    """Let an error name a field, recording, image or video as the client knows it.

    Options are renamed in the whole message, because errors of one option name others.
    """
    path = names.get(error.field, error.field)
    message = error.message.replace(error.field, path, 1)
    for name, sent in names.items():
        if name.startswith("options."):
            message = re.sub(rf"\b{re.escape(name)}\b", sent, message)
    error.message, error.args, error.field = message, (message,), path


async def _fetched(given: Attachments, download: Download) -> Attachments:
    """The attachments with what is somewhere else fetched, one file after the other."""

    async def fetched(item: Attachment) -> Attachment:
        if not isinstance(item.data, RemoteUrl):
            return item
        return replace(item, data=await download.fetch(item.data, item.field))

    files = Attachments(
        recordings=[await fetched(each) for each in given.recordings],
        images=[await fetched(each) for each in given.images],
        videos=[await fetched(each) for each in given.videos],
    )
    # Nothing is waited for any more.
    download.lease.keep()
    return files


async def read_conversation(
    messages: tuple[ConversationMessage, ...],
    given: Attachments,
    reader: stage_pb2.DescribeResponse,
    config: GatewayConfig,
    media: MediaInput,
    tools: Sequence[str] = (),
    sent: SentRecordings | None = None,
    key: str = "",
) -> Conversation:
    """The conversation as the reading stage wants it, decoded off the event loop; of recordings
    that were `sent` before only their keys. `key` is the name of who asks.

    Raises `NotImplementedYet` for a kind of input that the stage does not take, and
    `InvalidArgument` for too much of one or what cannot be read, with the field.
    """
    _check_parts(messages, config.max_parts)
    if reader.max_input_text_bytes:
        _check_text(messages, reader, sum(len(each.encode()) for each in tools))
    _check(given.images, IMAGE, reader.max_input_images, reader)
    _check(given.videos, VIDEO, reader.max_input_videos, reader)
    if not (given.recordings or given.images or given.videos):
        return Conversation(messages)
    rate_hz = reader.input_sample_rate_hz
    limits = AudioLimits(
        recordings=config.max_recordings,
        each_s=config.max_recording_s,
        all_s=min(config.max_audio_s, reader.max_input_audio_s),
    )
    check_recordings(given.recordings, rate_hz=rate_hz, limits=limits)
    decoder = media.decoder
    with media.fetcher.download() as download:
        given = await _fetched(given, download)
        recordings = await decode_recordings(
            given.recordings, decoder, rate_hz=rate_hz, limits=limits, sent=sent, key=key
        )
        images = await read_files(given.images, IMAGE, decoder.threads)
        videos = await read_files(given.videos, VIDEO, decoder.threads)
        return Conversation(messages, recordings, images, videos)


def _check_parts(messages: tuple[ConversationMessage, ...], most: int) -> None:
    """Raise for a conversation of more parts; each message has at least one."""
    parts = 0
    for index, message in enumerate(messages):
        parts += len(message.parts)
        if parts > most:
            field = f"messages[{index}]"
            raise InvalidArgument(f"{field}: more than {most} parts in the request", field=field)


def _check_text(
    messages: tuple[ConversationMessage, ...], reader: stage_pb2.DescribeResponse, size: int
) -> None:
    """Raise for more text than fits into the context, before anything is sent.

    `size` is what functions have.
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
                f"{field}: the text up to here has {size} bytes; the context limit of "
                f"{reader.context_limit} positions takes at most {most}",
                field=field,
            )


def _check(files: list[File], kind: str, most: int, reader: stage_pb2.DescribeResponse) -> None:
    """Raise for files of a kind that the stage does not take, or does not take so many of."""
    if files and kind not in reader.input_kinds:
        raise NotImplementedYet(
            f"{files[0].field}: this model's {reader.role} takes {', '.join(reader.input_kinds)}, "
            f"no {kind}s, with its engine {reader.engine!r}; a {reader.role} with `engine: vllm` "
            "does where the checkpoint can",
            field=files[0].field,
        )
    if len(files) > most:
        raise InvalidArgument(
            f"{files[most].field}: more than {most} {kind}s in the request", field=files[most].field
        )
