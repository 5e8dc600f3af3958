"""Determines the format of an audio file from its first bytes and which library can read it."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_gateway.media.decoding.wav import is_wav
from antiphon_gateway.media.mp3 import has_more_than, tag_bytes

DECODERS = (
    "opus,libopus,vorbis,libvorbis,aac,aac_fixed,aac_latm,alac,flac,mp3,mp3float,"
    "amrnb,amrwb,libopencore_amrnb,libopencore_amrwb,"
    "pcm_s8,pcm_u8,pcm_s16le,pcm_s16be,pcm_s24le,pcm_s24be,pcm_s32le,pcm_s32be,"
    "pcm_f32le,pcm_f32be,pcm_f64le,pcm_alaw,pcm_mulaw"
)
"""The FFmpeg decoders that are allowed to run. Pictures aren't decoded."""


@dataclass(frozen=True, slots=True)
class Container:
    """A file format. `demuxer` is FFmpeg's name for it. It is empty if libsndfile reads
    the format.
    """

    name: str
    demuxer: str = ""


WAV = Container("WAV")
MP3 = Container("MP3")
FLAC = Container("FLAC")
OGG = Container("Ogg")
AIFF = Container("AIFF")
CAF = Container("CAF")
MATROSKA = Container("WebM or Matroska", "matroska")
MP4 = Container("MP4, M4A or 3GP", "mov")
ADTS = Container("AAC", "aac")
AMR = Container("AMR", "amr")

KNOWN = "WAV, MP3, FLAC, Ogg, AIFF, CAF, WebM, Matroska, MP4, M4A, 3GP, AAC or AMR"

_HEAD_BYTES = 12
_CERTAIN_SAMPLES = 2000
"""The number of samples in consecutive MPEG frames. It corresponds to 2 to 6 frames."""


def container_of(data: bytes) -> Container | None:
    """Return a file's format, or None if the format isn't supported."""
    head = data[:_HEAD_BYTES]
    if is_wav(head):
        return WAV
    if head.startswith(b"fLaC"):
        return FLAC
    if head.startswith(b"OggS"):
        return OGG
    if head.startswith(b"FORM") and head[8:12] in (b"AIFF", b"AIFC"):
        return AIFF
    if head.startswith(b"caff"):
        return CAF
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return MATROSKA
    if head[4:8] == b"ftyp":
        return MP4
    if head.startswith(b"#!AMR"):
        return AMR
    return _mpeg(data)


def _mpeg(data: bytes) -> Container | None:
    """Recognize MP3, or AAC in ADTS, by the header of the first frame. There may be an ID3 tag
    before it.
    """
    at = tag_bytes(data)
    head = data[at : at + 2]
    if len(head) < 2 or head[0] != 0xFF or head[1] & 0xE0 != 0xE0:
        # libsndfile searches for the first frame after a tag.
        return MP3 if at else None
    # In ADTS, the layer has a value that doesn't exist in MPEG audio.
    return ADTS if head[1] & 0xF6 == 0xF0 else MP3


def unmistakable_container(data: bytes) -> Container | None:
    """Return the container of a file that is supposed to contain raw samples, or None if it really
    contains samples.

    Two samples can look like the header of an MPEG or ADTS frame, so this requires several
    consecutive frames.
    """
    found = container_of(data)
    if tag_bytes(data):
        return found
    if found is MP3:
        return MP3 if has_more_than(data, _CERTAIN_SAMPLES) else None
    if found is ADTS:
        return ADTS if _has_adts_frames(data) else None
    return found


def _has_adts_frames(data: bytes) -> bool:
    """Return whether there are three consecutive ADTS frames. The headers of such frames begin with
    the same bytes.
    """
    at = 0
    for _ in range(2):
        head = data[at : at + 6]
        if len(head) < 6:
            return False
        at += (head[3] & 3) << 11 | head[4] << 3 | head[5] >> 5
        if data[at : at + 3] != data[:3]:
            return False
    return True
