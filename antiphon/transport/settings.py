"""The settings and counters of links, as plain values."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from antiphon.deployment.stage_config import (
    LINK_BYTES,
    LINK_SESSION_BYTES,
    StageConfig,
    TransportName,
)
from antiphon.errors import InvalidArgument

ANSWER_WITHIN_S = 10.0
"""The default answer timeout in seconds. It is longer than a payload transfer may take, but shorter
than a session's stall timeout.
"""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """Settings that apply to all links of a process.

    `device` is the torch device, which determines whether NCCL or Gloo is used. `slab_bytes` is the
    amount of shared memory for payloads in flight on one link. A broken link can be resumed within
    `resume_window_s` seconds, unless this is 0. `session_bytes` and `link_bytes` limit the amount
    of queued data, as described in `SendLog`. With `mutual_tls`, no data leaves the host
    unencrypted. With `ring`, messages between processes on one host go through shared memory. A
    connection is considered broken if the consumer has something to confirm but
    doesn't send anything for `answer_within_s` seconds.
    """

    transport: TransportName
    device: str
    slab_bytes: int
    resume_window_s: float
    session_bytes: int = LINK_SESSION_BYTES
    link_bytes: int = LINK_BYTES
    mutual_tls: bool = False
    ring: bool = True
    answer_within_s: float = ANSWER_WITHIN_S

    @classmethod
    def of(cls, config: StageConfig, *, mutual_tls: bool = False) -> LinkSettings:
        """Return the settings of a stage. Raises `InvalidArgument` if a setting is invalid."""
        if config.link.slab_bytes & (config.link.slab_bytes - 1):
            raise InvalidArgument(
                f"link.slab_bytes: {config.link.slab_bytes} is not a power of two",
                field="link.slab_bytes",
            )
        return cls(
            config.link.transport,
            config.device,
            config.link.slab_bytes,
            config.link.resume_window_s,
            config.link.session_bytes,
            config.link.bytes,
            mutual_tls,
            config.link.ring,
        )


@dataclass(frozen=True, slots=True)
class LinkIdentity:
    """The identity that this process states in a hello.

    `address` is the address on which it listens, if any. `name` is a human-readable name.
    """

    host_id: str
    boot_id: str
    role: str
    address: str = ""
    name: str = ""


class Peer(NamedTuple):
    """A downstream process, identified by its address and, if known, its boot ID.

    The boot ID is needed because an address can be reused by another process, which doesn't have
    the state of its predecessor.
    """

    address: str
    boot_id: str = ""


@dataclass(slots=True)
class LinkState:
    """The state of one end of a link. It has the same fields as the proto message `LinkState`.

    A producer learns its peer's role and name when the peer accepts the link. `counts` contains the
    number of chunks and bytes for each transport ("chunks.grpc", "bytes.grpc"), and the number of
    fallbacks for each reason ("fallback.slab_full"). "messages" and "message_bytes" are the number
    and the size of the messages that the producer has written, and "carried.ring" and
    "carried.stream" are the numbers of messages for each carrier. The remaining counts are
    "reconnected", "resent", and "damaged". The last one counts how often a message or a ring was
    found damaged.
    """

    outgoing: bool
    peer_role: str = ""
    peer_address: str = ""
    peer_name: str = ""
    connected: bool = False
    transport: str = ""
    refused: tuple[str, ...] = ()
    counts: Counter[str] = field(default_factory=Counter)

    def count_message(self, size_bytes: int, carrier: str = "stream") -> None:
        """Count a message that has been written, either to the stream or to the ring."""
        self.counts["messages"] += 1
        self.counts["message_bytes"] += size_bytes
        self.counts[f"carried.{carrier}"] += 1

    def count_payload(self, transport: str, size_bytes: int) -> None:
        """Count a chunk that has been sent or received through a transport."""
        self.counts[f"chunks.{transport}"] += 1
        self.counts[f"bytes.{transport}"] += size_bytes

    def count_fallback(self, reason: str) -> None:
        """Count a chunk that was sent over gRPC as a fallback."""
        self.counts[f"fallback.{reason}"] += 1
