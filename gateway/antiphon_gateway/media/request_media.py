"""The recordings, images and videos of a request. Each of them is fetched and decoded no more than
once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from antiphon.values.chunk import Tensor
from antiphon.values.conversation import (
    Conversation,
    ConversationMessage,
    recording_key,
    with_recordings_alone,
)
from antiphon_gateway.admission.byte_budget import BudgetExceeded, Holder
from antiphon_gateway.media.attachments import Attachments, FieldsByKind, MediaInput
from antiphon_gateway.media.audio_in import (
    AudioLimits,
    Recording,
    check_seconds,
    decode_recording,
)
from antiphon_gateway.media.pcm_recording import PcmRecording
from antiphon_gateway.media.remote import Download, RemoteUrl
from antiphon_gateway.media.sent_recordings import RecordingName, SentRecordings, name_of
from antiphon_gateway.media.vision_in import IMAGE, VIDEO, File, read_files

Attachment = TypeVar("Attachment", Recording, File)
Counted = Callable[[], None]


class RequestRecording:
    """A recording in a request. It is a file until it has been decoded to float32 samples.

    If stages may already know the recording by its key, the recording has a `name` and keeps its
    file. Its `key` is computed together with its samples.
    """

    def __init__(self, file: Recording, *, named: bool) -> None:
        self.field = file.field
        self.file: Recording | None = file
        self.name: RecordingName | None = None
        if named and isinstance(file.data, PcmRecording):
            self.name = name_of(file.field, file.data)
        self.samples: Tensor | None = None
        self.key = b""

    def is_needed(self, sent: SentRecordings) -> bool:
        """Return whether samples are needed that aren't available yet, in a session that has
        received the recordings in `sent`.
        """
        return self.samples is None and not self.is_known(sent)

    def is_known(self, sent: SentRecordings) -> bool:
        """Return whether it is enough to send the key in this session."""
        return self.name is not None and sent.find(self.name) is not None

    def length(self, sent: SentRecordings) -> int:
        """Return the number of samples at the sample rate of the stage that reads them."""
        if self.samples is not None:
            return len(self.samples)
        known = None if self.name is None else sent.find(self.name)
        return 0 if known is None else sent.length(known)


class RequestMedia:
    """The media of one request, as described in the module docstring.

    `rate_hz` and `limits` come from the stage that reads recordings. `key` is the name of the API
    key. If recordings are `named`, they can be sent to a stage as keys, and are decoded only if a
    session needs their samples. With `alone`, each recording is encoded independently of the
    others. Decoded data counts towards `lease` until the lease is closed.
    """

    def __init__(
        self,
        given: Attachments,
        source: MediaInput,
        rate_hz: int,
        limits: AudioLimits,
        *,
        key: str,
        named: bool,
        alone: bool,
    ) -> None:
        self.lease = source.memory.lease(Holder.UPLOADS)
        # This doesn't depend on a client.
        self.lease.keep()
        self.rate_hz = rate_hz
        self.fields: FieldsByKind = given.fields
        self._source = source
        self._limits = limits
        self._key = key
        self._alone = alone
        self._recordings = [RequestRecording(each, named=named) for each in given.recordings]
        self._files: dict[str, Sequence[File]] = {IMAGE: given.images, VIDEO: given.videos}
        self._vision: dict[str, tuple[Tensor, ...]] = {}

    @property
    def size_bytes(self) -> int:
        """The size of the decoded data in bytes."""
        samples = (each.samples for each in self._recordings)
        found = [each for each in samples if each is not None]
        found += [file for files in self._vision.values() for file in files]
        return sum(each.nbytes for each in found)

    def needs(self, sent: SentRecordings) -> bool:
        """Return whether `decode` has any work to do for a session that has received the recordings
        in `sent`.
        """
        files = any(self._files.values())
        return files or any(each.is_needed(sent) for each in self._recordings)

    async def decode(self, sent: SentRecordings, *, heard: bool = False) -> None:
        """Fetch and decode what is needed by a session that has received the recordings in `sent`.
        This doesn't block the event loop.

        If the last recording is `heard` while the user is speaking, it is left out. If this is
        cancelled, decoding ends. Raises `InvalidArgument` or `NotImplementedYet` with the field of
        a file that can't be read or is too long, and `BudgetExceeded` if the gateway has no memory
        left for requests.
        """
        if not self.needs(sent):
            return
        with self._source.fetcher.download() as download:
            count = self._counted()
            for each in self._recordings:
                if each.file is not None:
                    each.file = await _fetched(each.file, download)
            for kind, files in self._files.items():
                self._files[kind] = [await _fetched(each, download) for each in files]
            # Nothing is pending at this point.
            download.lease.keep()
            await self._decode_recordings(sent, count, heard=heard)
            for kind in (IMAGE, VIDEO):
                files = self._files.pop(kind, ())
                self._vision[kind] = await read_files(files, kind, self._source.decoder.threads)
                count()

    async def _decode_recordings(
        self, sent: SentRecordings, count: Counted, *, heard: bool
    ) -> None:
        left_s = self._limits.all_s
        for each in self._recordings[:-1] if heard else self._recordings:
            if each.is_needed(sent):
                assert each.file is not None, "what was released is needed no more"
                each.samples = await decode_recording(
                    each.file,
                    self._source.decoder,
                    rate_hz=self.rate_hz,
                    left_s=left_s,
                    limits=self._limits,
                    key=self._key,
                )
                count()
                if each.name is None:
                    each.file = None
                else:
                    threads = self._source.decoder.threads
                    samples = each.samples
                    each.key = await threads.run(samples.nbytes, recording_key, samples)
            seconds = each.length(sent) / self.rate_hz
            check_seconds(seconds, each.field, left_s, self._limits)
            left_s -= seconds

    def seconds(self, sent: SentRecordings) -> float:
        """Return the total length of all recordings, in seconds, for a session that has received
        the recordings in `sent`.
        """
        samples = sum(each.length(sent) for each in self._recordings)
        return samples / self.rate_hz if samples else 0.0

    def conversation(
        self, messages: tuple[ConversationMessage, ...], sent: SentRecordings, *, keeps: bool
    ) -> Conversation:
        """Return the conversation for a session. The session already has the recordings in `sent`,
        so only their keys are sent.

        If the stage `keeps` recordings, those that the session receives now are added to `sent`.
        """
        recordings = tuple(self._brought(each, sent, keeps=keeps) for each in self._recordings)
        messages = with_recordings_alone(messages) if self._alone else messages
        images, videos = self._vision.get(IMAGE, ()), self._vision.get(VIDEO, ())
        return Conversation(messages, recordings, images, videos)

    def _brought(self, recording: RequestRecording, sent: SentRecordings, *, keeps: bool) -> Tensor:
        known = None if recording.name is None else sent.find(recording.name)
        if known is not None:
            return known
        assert recording.samples is not None, "what a session needs was decoded for it"
        if keeps and recording.name is not None:
            sent.note(recording.name, recording.key, len(recording.samples))
        return recording.samples

    def release(self) -> None:
        """Free all media and close the lease. No further attempts can use the media."""
        self._recordings.clear()
        self._vision.clear()
        self._files = {}
        self.lease.close()

    def _counted(self) -> Counted:
        """Return a function that adds newly decoded data to the lease's current size."""
        others_bytes = self.lease.size_bytes - self.size_bytes

        def count() -> None:
            try:
                self.lease.take(others_bytes + self.size_bytes)
            except BudgetExceeded:
                self.release()
                raise

        return count


async def _fetched(item: Attachment, download: Download) -> Attachment:
    """Return the file itself, if it is at a remote location."""
    if not isinstance(item.data, RemoteUrl):
        return item
    return replace(item, data=await download.fetch(item.data, item.field))
