"""Which transport a link uses: the producer offers, the consumer proves what it reaches.

The producer offers what it can make, best first; the consumer takes the first offer
that it can attach to and answers with what it has read there. Every transport that
is passed over leaves its reason, on both sides.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.transport.payload import framed, shared_memory
from antiphon.transport.payload.aside import made_aside
from antiphon.transport.payload.framed import FramedSender, WriteMessage
from antiphon.transport.payload.shared_memory import SlabSender, attach_slab
from antiphon.transport.payload.slab import Slab
from antiphon.transport.payload.transport import PayloadReceiver, PayloadSender
from antiphon.transport.settings import LinkSettings
from antiphon.v1 import stage_pb2

COLLECTIVES = frozenset({"nccl", "gloo"})


MakeSenders = Callable[
    [LinkSettings, str, WriteMessage], Awaitable[tuple[list[PayloadSender], list[str]]]
]


@dataclass(frozen=True, slots=True)
class Attached:
    """The consumer's choice. `receiver` is None for gRPC, which needs none."""

    receiver: PayloadReceiver | None
    transport: str
    proof: bytes
    refused: tuple[str, ...]


Attach = Callable[
    [Iterable[stage_pb2.TransportOffer], LinkSettings],
    Awaitable[Attached],
]


def candidates(settings: LinkSettings) -> tuple[str, ...]:
    """Kinds of transport to offer, best first."""
    if settings.transport != "auto":
        return (settings.transport,)
    nccl = ("nccl",) if settings.device.startswith("cuda") else ()
    return ("shared_memory", *nccl, "grpc")


def check_possible(settings: LinkSettings) -> None:
    """Raise `InvalidArgument` when this process can never have the transport that is forced."""
    if settings.transport == "shared_memory" and not hasattr(os, "memfd_create"):
        raise InvalidArgument("transport: this system has no anonymous files", field="transport")
    if settings.transport == "nccl":
        try:
            from antiphon.transport.payload.collective import library_for

            library = library_for(settings.device)
        except (ImportError, RuntimeError) as error:
            raise InvalidArgument(f"transport: nccl: {error}", field="transport") from error
        if settings.device.startswith("cuda") and library != "nccl":
            raise InvalidArgument("transport: this torch has no NCCL", field="transport")


async def make_senders(
    settings: LinkSettings, address: str, write: WriteMessage
) -> tuple[list[PayloadSender], list[str]]:
    """What this process can offer on a link to `address`, and why not the rest.

    Raises `FailedPrecondition` when nothing is left to offer.
    """
    senders: list[PayloadSender] = []
    failed: list[str] = []
    try:
        for name in candidates(settings):
            try:
                senders.append(await _make(name, settings, address, write))
            except (OSError, RuntimeError, ImportError, ValueError) as error:
                failed.append(f"{name}: {error}")
    except BaseException:
        # A cancelled handshake: nobody else knows of those that were made already.
        for sender in senders:
            sender.close()
        raise
    if not senders:
        raise FailedPrecondition(f"no transport can be offered: {'; '.join(failed)}")
    return senders, failed


async def _make(
    name: str, settings: LinkSettings, address: str, write: WriteMessage
) -> PayloadSender:
    if name == shared_memory.NAME:
        return SlabSender(Slab(settings.slab_bytes))
    if name == framed.NAME:
        return FramedSender(write)
    host = address.rpartition(":")[0].strip("[]") or "localhost"

    def make() -> PayloadSender:
        # Needs torch, which gRPC and shared memory do not; its import takes seconds.
        from antiphon.transport.payload.collective import CollectiveSender

        return CollectiveSender(settings.device, host, write)

    return await made_aside(make, lambda sender: sender.close())


async def attach_best(
    offers: Iterable[stage_pb2.TransportOffer], settings: LinkSettings
) -> Attached:
    """Attach to the first offer that can be proved.

    Who offers nothing offers gRPC: the link itself. Raises `FailedPrecondition`, with
    every reason, when there is none.
    """
    refused: list[str] = []
    for offer in tuple(offers) or (stage_pb2.TransportOffer(transport=framed.NAME),):
        kind = "nccl" if offer.transport in COLLECTIVES else offer.transport
        if settings.transport not in ("auto", kind):
            refused.append(f"{kind}: the consumer is set to {settings.transport}")
        elif kind == framed.NAME:
            return Attached(None, framed.NAME, b"", tuple(refused))
        else:
            try:
                receiver, proof = await _attach(offer, settings)
            except (OSError, RuntimeError, ImportError, ValueError) as error:
                refused.append(f"{kind}: cannot be reached from the consumer: {error}")
            else:
                return Attached(receiver, receiver.name, proof, tuple(refused))
    raise FailedPrecondition(f"no transport suits both ends of the link: {'; '.join(refused)}")


async def _attach(
    offer: stage_pb2.TransportOffer, settings: LinkSettings
) -> tuple[PayloadReceiver, bytes]:
    if offer.transport == shared_memory.NAME:
        return await attach_slab(offer)
    if offer.transport in COLLECTIVES:
        return await made_aside(
            lambda: _join(offer, settings.device), lambda joined: joined[0].close()
        )
    raise ValueError("this version does not know it")


def _join(offer: stage_pb2.TransportOffer, device: str) -> tuple[PayloadReceiver, bytes]:
    """Blocks, for seconds where torch has not been imported yet."""
    from antiphon.transport.payload.collective import join_rendezvous

    return join_rendezvous(offer, device)
