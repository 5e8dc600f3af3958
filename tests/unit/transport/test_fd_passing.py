from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from antiphon.transport import fd_passing
from antiphon.transport.fd_passing import SECRET_BYTES, FdGiver, receive_fds
from antiphon_testkit.open_files import open_files


@pytest.fixture
async def giver() -> AsyncIterator[FdGiver]:
    fd = os.memfd_create("test-given")
    os.write(fd, b"here")
    giver = FdGiver(fd)
    yield giver
    giver.close()
    os.close(fd)


def open_sockets() -> int:
    return sum("socket" in each for each in open_files())


def guest(giver: FdGiver) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.settimeout(10)
        sock.connect(f"\0{giver.name}")
    except OSError:
        sock.close()
        raise
    return sock


async def test_descriptor_is_given_to_who_knows_the_secret(giver: FdGiver) -> None:
    (fd,) = await asyncio.to_thread(receive_fds, giver.name, giver.secret, 1)
    assert os.pread(fd, 4, 0) == b"here"
    # A process that is started in the meantime would otherwise keep the memory.
    assert not os.get_inheritable(fd)
    os.close(fd)


@pytest.mark.parametrize("secret", [b"", b"x", bytes(SECRET_BYTES)])
async def test_nothing_is_given_to_who_does_not(giver: FdGiver, secret: bytes) -> None:
    with pytest.raises(OSError, match="did not hand"):
        await asyncio.to_thread(receive_fds, giver.name, secret or b"\0", 1)


async def test_nobody_is_let_in_when_it_is_closed(giver: FdGiver) -> None:
    waiting = await asyncio.to_thread(guest, giver)
    giver.close()
    giver.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.to_thread(guest, giver)
    waiting.close()


async def test_guests_who_say_nothing_are_bounded_and_leave_nothing(
    giver: FdGiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fd_passing, "_MAX_GUESTS", 2)
    before = open_sockets()
    guests = [await asyncio.to_thread(guest, giver) for _ in range(2)]
    one_more = await asyncio.to_thread(guest, giver)
    assert await asyncio.to_thread(one_more.recv, 1) == b""
    one_more.close()
    for each in guests:
        each.close()
    giver.close()
    assert open_sockets() <= before


async def test_receiving_is_given_up_when_the_producer_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fd_passing, "RECEIVE_TIMEOUT_S", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as mute:
        # The kernel chooses a free name.
        mute.bind("")
        name = mute.getsockname()[1:].decode()
        mute.listen(1)
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(receive_fds, name, b"secret", 1)
