"""An audio track of a file with headers, including what is declared in the codec's headers."""

from __future__ import annotations

import mmap
from dataclasses import dataclass, field

File = bytes | mmap.mmap
MAX_TRACKS = 16
"""The maximum number of tracks of all types in a file."""


@dataclass(slots=True)
class MuxedSound:
    """What a file declares about one of its audio tracks.

    The container's headers and the codec's headers can differ, so there can be several channel
    counts and several sample rates. `seconds` is 0 if no header contains the length.
    """

    channels: list[int] = field(default_factory=list)
    rates_hz: list[int] = field(default_factory=list)
    seconds: float = 0.0

    def add_opus(self, head: bytes) -> None:
        """Add the `OpusHead` of an Ogg, WebM or Matroska file. Opus is always decoded to 48 kHz."""
        if head[:8] == b"OpusHead" and len(head) > 9:
            self.channels.append(head[9])

    def add_vorbis(self, private: bytes) -> None:
        """Add the three headers of Vorbis. The first one contains the channels and the rate."""
        at = private.find(b"\x01vorbis")
        if at >= 0 and len(private) >= at + 16:
            self.channels.append(private[at + 11])
            self.rates_hz.append(int.from_bytes(private[at + 12 : at + 16], "little"))

    def add_flac(self, stream_info: bytes) -> None:
        """Add FLAC's STREAMINFO, without its block header."""
        if len(stream_info) >= 13:
            bits = int.from_bytes(stream_info[10:13], "big")
            self.rates_hz.append(bits >> 4)
            self.channels.append((bits >> 1 & 7) + 1)
