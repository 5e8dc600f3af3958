"""Decodes recordings in all supported container formats. There are limits on the cost."""

from __future__ import annotations

import numpy as np

from antiphon.values.chunk import Tensor
from antiphon_gateway.media.decoding.bounds import LOUDEST, RecordingTooLong, RejectedRecording
from antiphon_gateway.media.decoding.containers import KNOWN, WAV, container_of
from antiphon_gateway.media.decoding.ffmpeg import REMEDY, decode_command, find_ffmpeg
from antiphon_gateway.media.decoding.processes import DecodeJob, DecoderProcesses
from antiphon_gateway.media.decoding.wav import check_header, decode_wav, read_header
from antiphon_gateway.threads import SizedThreads


class MissingFfmpeg(RejectedRecording):
    """The container requires FFmpeg, which isn't installed."""


class MediaDecoder:
    """Decodes recordings. It must be closed when it is no longer needed.

    WAV files are decoded on threads, because their cost is proportional to their size. All other
    formats are decoded in child processes, which end together with the request.
    """

    def __init__(self, processes: int) -> None:
        self.processes = DecoderProcesses(processes)
        self.threads = SizedThreads("media")
        self._ffmpeg = find_ffmpeg()

    async def decode(self, data: bytes, rate_hz: int, most_s: float, key: str) -> Tensor:
        """Return a file's mono float32 samples at `rate_hz`. The file can be up to `most_s` seconds
        long.

        If this is cancelled, the child process is killed. The decoding of a WAV file continues, but
        that doesn't take long. Raises `RejectedRecording` if the file exceeds a limit or can't be
        read, and the errors of `DecoderProcesses.decode`.
        """
        container = container_of(data)
        if container is None:
            raise RejectedRecording(f"is not a {KNOWN} file")
        if container is WAV:
            header = read_header(data)
            check_header(header, most_s)
            cost_bytes = header.cost_bytes(rate_hz)
            samples = await self.threads.run(cost_bytes, decode_wav, data, header, rate_hz)
        else:
            program: tuple[str, ...] = ()
            if container.demuxer:
                if not self._ffmpeg:
                    raise MissingFfmpeg(
                        f"is a file in {container.name}, which can only be decoded with ffmpeg; "
                        f"{REMEDY}, or send WAV, FLAC, Ogg or MP3"
                    )
                program = decode_command(self._ffmpeg, container, rate_hz, most_s)
            job = DecodeJob(container.name, rate_hz, most_s, program)
            samples = await self.processes.decode(data, job, key)
            await self.threads.run(samples.nbytes, _check_samples, samples)
        if not len(samples):
            raise RejectedRecording("has no samples")
        # Resampling can round up by one sample.
        if container.demuxer and (seconds := (len(samples) - 1) / rate_hz) > most_s:
            raise RecordingTooLong(seconds)
        return samples

    async def close(self) -> None:
        """Kill all decoding processes. Nothing is decoded after this."""
        await self.processes.close()
        self.threads.close()


def _check_samples(samples: Tensor) -> None:
    """Raise an error if the samples aren't valid. This check is the same for all decoders."""
    if len(samples) and not np.abs(samples).max() <= LOUDEST:
        raise RejectedRecording(f"has samples that are NaN, infinite or beyond ±{LOUDEST:g}")
