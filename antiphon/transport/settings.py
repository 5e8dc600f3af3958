"""Settings and counters of links, as plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.deployment.schema import (
    LINK_BYTES,
    LINK_SESSION_BYTES,
    StageConfig,
    TransportName,
)
from antiphon.errors import InvalidArgument

ANSWER_WITHIN_S = 10.0
"""Longer than a payload transfer may take, shorter than a session's stall timeout."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """A process's settings for links.

    `device` is the torch device, which selects NCCL or Gloo. `slab_bytes` is the shared memory for
    payloads in flight on one link. `resume_window_s` is how long a broken link may take to resume;
    0 disables resuming. `session_bytes` and `link_bytes` bound queued data; see `SendLog`. With
    `mutual_tls` nothing leaves the host unencrypted. A connection is considered broken when the
    consumer has something to confirm and is silent for `answer_within_s`.
    """

    transport: TransportName
    device: str
    slab_bytes: int
    resume_window_s: float
    session_bytes: int = LINK_SESSION_BYTES
    link_bytes: int = LINK_BYTES
    mutual_tls: bool = False
    answer_within_s: float = ANSWER_WITHIN_S

    @classmethod
    def of(cls, config: StageConfig, *, mutual_tls: bool = False) -> LinkSettings:
        """A stage's settings. Raises `InvalidArgument`."""
        if config.slab_bytes & (config.slab_bytes - 1):
            raise InvalidArgument(
                f"slab_bytes: {config.slab_bytes} is not a power of two", field="slab_bytes"
            )
        return cls(
            config.transport,
            config.device,
            config.slab_bytes,
            config.resume_window_s,
            config.link_session_bytes,
            config.link_bytes,
            mutual_tls,
        )


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """This process's identity in a hello.

    `address` is where it listens, if it does. `name` is its name for people.
    """

    host_id: str
    boot_id: str
    role: str
    address: str = ""
    name: str = ""


class Peer(NamedTuple):
    """A downstream process: its address, and its boot id if known.

    The boot id matters because addresses are reused by processes without the predecessor's state.
    """

    address: str
    boot_id: str = ""


@dataclass(slots=True)
class LinkState:
    """One end's state of a link, as `LinkState` in proto. A producer learns the peer's role and
    name when the peer accepts the link.

    `counts` has chunks and bytes by transport ("chunks.grpc", "bytes.grpc"), fallbacks by reason
    ("fallback.slab_full"), "messages", "message_bytes" (written by the producer), "reconnected",
    "resent" and "damaged" (corrupt messages received).
    """

    outgoing: bool
    peer_role: str = ""
    peer_address: str = ""
    peer_name: str = ""
    connected: bool = False
    transport: str = ""
    refused: tuple[str, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)

    def count_message(self, size_bytes: int) -> None:
        """Count a gRPC message written."""
        self.counts["messages"] += 1
        self.counts["message_bytes"] += size_bytes

    def count_payload(self, transport: str, size_bytes: int) -> None:
        """Count a chunk sent or received over a transport."""
        self.counts[f"chunks.{transport}"] += 1
        self.counts[f"bytes.{transport}"] += size_bytes

    def count_fallback(self, reason: str) -> None:
        """Count a chunk that fell back to gRPC."""
        self.counts[f"fallback.{reason}"] += 1
