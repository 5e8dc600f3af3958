"""Audio files as real programs mux them."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import wave
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

FFMPEG = shutil.which("ffmpeg") or ""
RATE_HZ = 48_000


def needs_ffmpeg() -> pytest.MarkDecorator:
    """Skips without ffmpeg; `.ci/run` installs it and sets CI, so there it never does."""
    missing = not FFMPEG and "ANTIPHON_CI" not in os.environ
    return pytest.mark.skipif(missing, reason="needs ffmpeg (Debian: apt-get install ffmpeg)")


@cache
def said(seconds: float) -> bytes:
    """A WAV file of stereo sound."""
    count = round(seconds * RATE_HZ)
    wave_ = 0.4 * np.sin(2 * np.pi * 440 * np.arange(count) / RATE_HZ)
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(2)
        out.setsampwidth(2)
        out.setframerate(RATE_HZ)
        out.writeframes(np.repeat((wave_ * 32767).astype("<i2"), 2).tobytes())
    return file.getvalue()


PICTURE = ("-f", "lavfi", "-i", "testsrc=s=64x64:r=5", "-map", "1:v", "-map", "0:a", "-shortest")
COVER = ("-f", "lavfi", "-i", "testsrc=s=64x64:r=10:d=0.1", "-map", "0:a", "-map", "1:v")
ATTACHED = ("-disposition:v", "attached_pic")
MUXED: dict[str, tuple[str, ...]] = {
    # The file's name, and what ffmpeg is asked for.
    "webm": ("a.webm", "-c:a", "libopus"),
    "webm-live": ("a.webm", "-c:a", "libopus", "-live", "1"),
    "mka-vorbis": ("a.mka", "-c:a", "libvorbis"),
    "mp4-index-end": ("a.mp4", "-c:a", "aac"),
    "mp4-index-front": ("a.mp4", "-c:a", "aac", "-movflags", "+faststart"),
    "mp4-fragmented": ("a.mp4", "-c:a", "aac", "-movflags", "+frag_keyframe+empty_moov"),
    "m4a-index-end": ("a.m4a", "-c:a", "aac"),
    "m4a-index-front": ("a.m4a", "-c:a", "aac", "-movflags", "+faststart"),
    "m4a-alac": ("a.m4a", "-c:a", "alac"),
    # Chrome's MediaRecorder, a song with its cover, and a camera's file.
    "mp4-opus-fragmented": ("a.mp4", "-c:a", "libopus", "-movflags", "+frag_keyframe+empty_moov"),
    "m4a-cover": ("a.m4a", *COVER, "-c:v", "mjpeg", *ATTACHED, "-c:a", "aac"),
    "webm-picture": ("a.webm", *PICTURE, "-c:v", "libvpx", "-c:a", "libopus"),
    "mp4-picture": ("a.mp4", *PICTURE, "-c:v", "mpeg4", "-c:a", "aac"),
    "3gp": ("a.3gp", "-c:a", "aac"),
    "adts": ("a.aac", "-c:a", "aac"),
    "aiff": ("a.aiff",),
    "caf": ("a.caf",),
    "wav-from-a-pipe": ("-f", "wav"),
}
# What differs in these is what is beside the sound.
SHORT = ("mp4-opus-fragmented", "m4a-cover", "webm-picture", "mp4-picture")


@cache
def muxed(kind: str, seconds: float) -> bytes:
    """Sound of so many seconds in a container."""
    name, *options = MUXED[kind]
    head = [FFMPEG, "-v", "error", "-f", "wav", "-i", "-"]
    if kind == "wav-from-a-pipe":
        return _run([*head, "-f", "wav", "-"], said(seconds))
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        _run([*head, *options, str(path)], said(seconds))
        return path.read_bytes()


def program(folder: Path, text: str) -> None:
    """Have a script found as ffmpeg, where the folder is in PATH."""
    path = folder / "ffmpeg"
    path.write_text(text)
    path.chmod(0o755)


def _run(command: list[str], given: bytes) -> bytes:
    return subprocess.run(command, input=given, stdout=subprocess.PIPE, check=True).stdout
