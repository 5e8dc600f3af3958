"""Lists all payload transports and negotiates which of them a link uses.

The producer offers all transports that it can create, starting with the best one. The consumer
attaches to the first offer that works. As proof, it returns data that it has read through the
transport. If a transport is skipped, both sides record the reason.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from antiphon.errors import FailedPrecondition
from antiphon.transport.payload import collective, framed, shared_memory
from antiphon.transport.payload.framed import FramedReceiver, FramedSender
from antiphon.transport.payload.transport import (
    PayloadReceiver,
    PayloadSender,
    Transport,
    WriteMessage,
)
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import stage_pb2

TRANSPORTS: dict[str, Transport] = {
    row.name: row for row in (shared_memory.TRANSPORT, collective.TRANSPORT, framed.TRANSPORT)
}
"""All transports by name, starting with the best one."""

FALLBACK = framed.TRANSPORT
"""The link itself, which can carry any payload on any connection."""
FallbackSender = FramedSender
FallbackReceiver = FramedReceiver

_FAILURES = (OSError, RuntimeError, ImportError, ValueError)

MakeSenders = Callable[
    [LinkSettings, str, WriteMessage], Awaitable[tuple[list[PayloadSender], list[str]]]
]


@dataclass(frozen=True, slots=True)
class Attached:
    """The transport that the consumer has selected."""

    receiver: PayloadReceiver
    proof: bytes
    refused: tuple[str, ...]


Attach = Callable[[Iterable[stage_pb2.TransportOffer], LinkSettings], Awaitable[Attached]]


def candidates(settings: LinkSettings) -> tuple[str, ...]:
    """Return the transports to offer, starting with the best one."""
    if settings.transport != "auto":
        return (settings.transport,)
    return tuple(name for name, row in TRANSPORTS.items() if row.by_default(settings))


def check_possible(settings: LinkSettings) -> None:
    """Raise `InvalidArgument` if this process could never use the configured transport."""
    if settings.transport != "auto":
        TRANSPORTS[settings.transport].check(settings)


def is_reason(reason: str) -> bool:
    """Return whether a transport counts fallbacks with this reason."""
    return any(reason in row.reasons for row in TRANSPORTS.values())


async def make_senders(
    settings: LinkSettings, address: str, write: WriteMessage
) -> tuple[list[PayloadSender], list[str]]:
    """Create the transports to offer on a link to `address`.

    Returns the transports, and the reasons why others couldn't be created. Raises
    `FailedPrecondition` if none could be created.
    """
    senders: list[PayloadSender] = []
    failed: list[str] = []
    try:
        for name in candidates(settings):
            try:
                senders.append(await TRANSPORTS[name].make_sender(settings, address, write))
            except _FAILURES as error:
                failed.append(f"{name}: {error}")
    except BaseException:
        # If the handshake is cancelled, only this frame refers to the senders that have been
        # created.
        for sender in senders:
            sender.close()
        raise
    if not senders:
        raise FailedPrecondition(f"no transport is available: {'; '.join(failed)}")
    return senders, failed


async def attach_best(
    offers: Iterable[stage_pb2.TransportOffer], settings: LinkSettings
) -> Attached:
    """Attach to the first offer that works and return it with its proof.

    If the list of offers is empty, the link itself is used. If no offer works, `FailedPrecondition`
    is raised with all the reasons.
    """
    refused: list[str] = []
    for offer in tuple(offers) or (stage_pb2.TransportOffer(transport=FALLBACK.name),):
        row = next((row for row in TRANSPORTS.values() if offer.transport in row.names), None)
        name = row.name if row else offer.transport
        if settings.transport not in ("auto", name):
            refused.append(f"{name}: the consumer only accepts {settings.transport}")
        elif row is None:
            refused.append(f"{name}: is not supported by this version")
        else:
            try:
                receiver, proof = await row.attach(offer, settings)
            except _FAILURES as error:
                refused.append(f"{name}: can't be reached from the consumer: {error}")
            else:
                return Attached(receiver, proof, tuple(refused))
    raise FailedPrecondition(
        f"the two ends of the link have no transport in common: {'; '.join(refused)}"
    )
