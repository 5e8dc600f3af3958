from __future__ import annotations

import os

import pytest

from antiphon.transport.fd_passing import SECRET_BYTES
from antiphon.transport.ring.offer import OfferedRing, attach_ring
from antiphon_testkit.open_files import open_files, opened_since


async def test_ring_connects_both_ends_and_leaves_no_descriptor() -> None:
    before = open_files()
    offered = OfferedRing()
    reader = await attach_ring(offered.offer())
    writer = offered.accepted(reader.proof())
    assert writer is not None
    assert writer.write(b"message", 0)
    reader.notice()
    assert reader.messages(0) == [b"message"]
    with pytest.raises(ConnectionRefusedError):
        await attach_ring(offered.offer())
    writer.close()
    reader.close()
    assert not opened_since(before)


@pytest.mark.parametrize("proof", [b"", bytes(32)])
async def test_ring_is_closed_when_it_was_not_proved(proof: bytes) -> None:
    before = open_files()
    offered = OfferedRing()
    assert offered.accepted(proof) is None
    assert not opened_since(before)


async def test_ring_is_not_given_to_who_does_not_know_the_secret() -> None:
    offered = OfferedRing()
    with pytest.raises(OSError, match="did not hand"):
        await attach_ring(bytes(SECRET_BYTES) + offered.offer()[SECRET_BYTES:])
    offered.close()


@pytest.mark.parametrize("offer", [b"", b"short", bytes(SECRET_BYTES), b"s" * 16 + b"\xff"])
async def test_malformed_offer_is_refused(offer: bytes) -> None:
    with pytest.raises(ValueError, match=r"malformed|decode"):
        await attach_ring(offer)


@pytest.mark.parametrize("missing", ["memfd_create", "eventfd"])
async def test_there_is_no_ring_without_anonymous_files(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.delattr(os, missing)
    with pytest.raises(OSError, match="no anonymous files"):
        OfferedRing()
