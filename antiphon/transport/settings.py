"""What a process decides about its links, and what it counts on them: plain values."""

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
"""Longer than a payload may be under way, and shorter than a session waits for its input."""


@dataclass(frozen=True, slots=True)
class LinkSettings:
    """How a process links.

    `device` is the torch device between whose kind NCCL or Gloo are chosen,
    `slab_bytes` the most that the payloads under way on one link may take of shared
    memory, `resume_window_s` how long a broken link may take to heal; 0: not at all.
    `session_bytes` and `link_bytes` bound what waits on a link; see `SendLog`. With `mutual_tls`
    nothing leaves the host unencrypted. A connection on which the consumer says nothing for
    `answer_within_s`, although it has something to confirm, is taken for broken.
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
    """This process, as a hello tells it; `address` is where it listens, if it does, and `name`
    what people call it."""

    host_id: str
    boot_id: str
    role: str
    address: str = ""
    name: str = ""


class Peer(NamedTuple):
    """A downstream process: where it listens, and which boot is meant, if it is known.

    Addresses are given out again, to processes that know nothing of their predecessors.
    """

    address: str
    boot_id: str = ""


@dataclass(slots=True)
class LinkState:
    """One link as one of its ends sees it; what `LinkState` in proto tells. A producer knows its
    peer's role and name when that has accepted the link.

    `counts` has chunks and bytes by transport ("chunks.grpc", "bytes.grpc"),
    fallbacks by reason ("fallback.slab_full"), "messages", "message_bytes" (written,
    on the producer's side), "reconnected", "resent", "damaged" (messages that came so).
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
        """A gRPC message was written."""
        self.counts["messages"] += 1
        self.counts["message_bytes"] += size_bytes

    def count_payload(self, transport: str, size_bytes: int) -> None:
        """A chunk went, or came, over a transport."""
        self.counts[f"chunks.{transport}"] += 1
        self.counts[f"bytes.{transport}"] += size_bytes

    def count_fallback(self, reason: str) -> None:
        """A chunk had to go over gRPC."""
        self.counts[f"fallback.{reason}"] += 1
