"""Recordings of any container that is read, decoded where their cost is bounded."""

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
    """A container that needs FFmpeg, which is not installed."""


class MediaDecoder:
    """Decodes recordings: WAV on threads, because its cost is that of its bytes; everything else
    in child processes that a request takes with it when it ends. Close it."""

    def __init__(self, processes: int) -> None:
        self.processes = DecoderProcesses(processes)
        self.threads = SizedThreads("media")
        self._ffmpeg = find_ffmpeg()

    async def decode(self, data: bytes, rate_hz: int, most_s: float, key: str) -> Tensor:
        """Mono float32 samples at `rate_hz` of a file that may last `most_s`.

        Cancelling kills the child process; WAV goes on, for as long as its bytes take. Raises
        `RejectedRecording` for a file that is out of bounds or cannot be read, and what
        `DecoderProcesses.decode` raises.
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
                        f"is {container.name}, which is read with ffmpeg alone; {REMEDY}, or send "
                        "WAV, FLAC, Ogg or MP3"
                    )
                program = decode_command(self._ffmpeg, container, rate_hz, most_s)
            job = DecodeJob(container.name, rate_hz, most_s, program)
            samples = await self.processes.decode(data, job, key)
            await self.threads.run(samples.nbytes, _check_samples, samples)
        if not len(samples):
            raise RejectedRecording("has no samples")
        # Resampling may round up by a sample.
        if container.demuxer and (seconds := (len(samples) - 1) / rate_hz) > most_s:
            raise RecordingTooLong(seconds)
        return samples

    async def close(self) -> None:
        """Kill what is being decoded; decode nothing more."""
        await self.processes.close()
        self.threads.close()


def _check_samples(samples: Tensor) -> None:
    """Raise for samples that are none, whatever wrote them."""
    if len(samples) and not np.abs(samples).max() <= LOUDEST:
        raise RejectedRecording(f"has samples that are NaN, infinite or beyond {LOUDEST:g}")
