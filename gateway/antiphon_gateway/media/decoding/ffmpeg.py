"""Decodes a file with FFmpeg, in a child process that has access only to what it needs.

The file is an in-memory file rather than a pipe, because the index of an MP4 file can be at its
end. None of the demuxers supports playlists, so a file can't refer to other files.
"""

from __future__ import annotations

import shutil

from antiphon_gateway.media.decoding.bounds import SPARE_S
from antiphon_gateway.media.decoding.containers import DECODERS, Container

REMEDY = "install ffmpeg on the gateway's host (Debian: apt-get install ffmpeg)"
MAX_STREAMS = 16
"""The maximum number of tracks in a file."""


def find_ffmpeg() -> str:
    """Return the path of the program. If it isn't installed, returns an empty string."""
    return shutil.which("ffmpeg") or ""


def decode_command(
    ffmpeg: str, container: Container, rate_hz: int, most_s: float
) -> tuple[str, ...]:
    """Return a command that decodes the first audio track of its standard input to mono float32
    samples.
    """
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
        # Average the channels. Otherwise, the sum of float samples from both sides would be too
        # large.
        *("-ac", "1", "-rematrix_maxval", "1.0", "-ar", str(rate_hz)),
        *("-c:a", "pcm_f32le", "-f", "f32le", "pipe:1"),
    )


_FORMATS = {
    "matroska": "matroska,webm",
    "mov": "mov,mp4,m4a,3gp,3g2,mj2",
    "aac": "aac",
    "amr": "amr",
}
