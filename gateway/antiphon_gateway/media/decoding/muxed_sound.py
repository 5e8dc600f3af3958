"""An audio track of a file with headers, and what codecs' own headers add to it."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

File = bytes | mmap.mmap
MAX_TRACKS = 16
"""Tracks of any kind that a file may have."""


@dataclass(slots=True)
class MuxedSound:
    """What a file states of an audio track: the container's header and the codec's may differ, so
    there may be more than one number of channels and more than one rate. `seconds` is 0 where no
    header states a duration."""

    channels: list[int] = field(default_factory=list)
    rates_hz: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add_opus(self, head: bytes) -> None:
        """The `OpusHead` of an Ogg, WebM or Matroska file. Opus always decodes to 48 kHz."""
        if head[:8] == b"OpusHead" and len(head) > 9:
            self.channels.append(head[9])

    def add_vorbis(self, private: bytes) -> None:
        """Add Vorbis' three headers; the first has channels and rate."""
        at = private.find(b"\x01vorbis")
        if at >= 0 and len(private) >= at + 16:
            self.channels.append(private[at + 11])
            self.rates_hz.append(int.from_bytes(private[at + 12 : at + 16], "little"))

    def add_flac(self, stream_info: bytes) -> None:
        """FLAC's STREAMINFO without its block header."""
        if len(stream_info) >= 13:
            bits = int.from_bytes(stream_info[10:13], "big")
            self.rates_hz.append(bits >> 4)
            self.channels.append((bits >> 1 & 7) + 1)
