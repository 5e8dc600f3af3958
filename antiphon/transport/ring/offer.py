"""Offers a ring to the other end of a link, and attaches to one.

The offer contains a socket and a secret, which the reader needs to obtain the descriptors. The
proof is a nonce that is stored in the ring.
"""

from __future__ import annotations

import hmac
import os

from antiphon.transport.anonymous_file import NO_FILES, has_anonymous_files
from antiphon.transport.fd_passing import SECRET_BYTES, FdGiver, close_fds, receive_fds
from antiphon.transport.ring.messages import RingReader, RingWriter
from antiphon.transport.thread_work import made_on_thread

RING_FDS = 3


class OfferedRing:
    """A ring that the other end may attach to. Raises `OSError` if this system doesn't support
    it.
    """

    def __init__(self) -> None:
        if not has_anonymous_files() or not hasattr(os, "eventfd"):
            raise OSError(NO_FILES)
        self._ring = RingWriter()
        try:
            self._giver = FdGiver(*self._ring.fds)
        except OSError:
            self._ring.close()
            raise

    def offer(self) -> bytes:
        """Return what the reader needs in order to attach."""
        return self._giver.secret + self._giver.name.encode()

    def accepted(self, proof: bytes) -> RingWriter | None:
        """Return the ring if the proof is correct. Otherwise, close it and return None. No other
        process can attach any more.
        """
        self._giver.close()
        if hmac.compare_digest(proof, self._ring.proof):
            return self._ring
        self._ring.close()
        return None

    def close(self) -> None:
        """Close a ring that was neither accepted nor rejected."""
        self._giver.close()
        self._ring.close()


async def attach_ring(offer: bytes) -> RingReader:
    """Attach to a ring. Raises `OSError` or `ValueError` if this process can't access it."""
    if len(offer) <= SECRET_BYTES:
        raise ValueError("the offer of the ring is malformed")
    secret, name = offer[:SECRET_BYTES], offer[SECRET_BYTES:].decode()
    fds = await made_on_thread(lambda: receive_fds(name, secret, RING_FDS), close_fds)
    return RingReader(*fds)
