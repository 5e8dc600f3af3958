"""How FFmpeg decodes a file: as a child process, with nothing allowed that it does not need.

The file is a descriptor in memory and not a pipe, because MP4 may have its index at the end. No
playlist is among the demuxers, so a file cannot name others to open.
"""

from __future__ import annotations

import shutil

from antiphon_gateway.media.decoding.bounds import SPARE_S
from antiphon_gateway.media.decoding.containers import DECODERS, Container

REMEDY = "install ffmpeg where the gateway runs (Debian: apt-get install ffmpeg)"
MAX_STREAMS = 16
"""Tracks that a file may have."""


def find_ffmpeg() -> str:
    """The program's path; empty where it is not installed."""
    return shutil.which("ffmpeg") or ""


def decode_command(
    ffmpeg: str, container: Container, rate_hz: int, most_s: float
) -> tuple[str, ...]:
    """Decode the first audio track of the standard input to mono float32 samples."""
    return (
        ffmpeg,
        *("-nostdin", "-hide_banner", "-loglevel", "quiet"),
        *("-protocol_whitelist", "file"),
        *("-format_whitelist", _FORMATS[container.demuxer]),
        *("-codec_whitelist", DECODERS),
        *("-max_streams", str(MAX_STREAMS)),
        *("-threads", "1"),
        *("-f", container.demuxer, "-i", "file:/dev/fd/0"),
        *("-map", "0:a:0"),
        *("-t", f"{most_s + SPARE_S:.3f}"),
        # Channels are averaged; else float samples of both sides would add up to more.
        *("-ac", "1", "-rematrix_maxval", "1.0", "-ar", str(rate_hz)),
        *("-c:a", "pcm_f32le", "-f", "f32le", "pipe:1"),
    )


_FORMATS = {
    "matroska": "matroska,webm",
    "mov": "mov,mp4,m4a,3gp,3g2,mj2",
    "aac": "aac",
    "amr": "amr",
}
