"""Handshakes that are cut short leave no descriptor behind."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections import Counter

import pytest

from antiphon.transport.payload import registry
from antiphon.transport.payload.registry import attach_best, check_possible, make_senders
from antiphon.transport.payload.shared_memory import SlabSender
from antiphon.transport.payload.slab import Slab
from antiphon.transport.settings import LinkSettings
from antiphon.transport.thread_work import made_on_thread
from antiphon.wire.frames import LinkMessage
from antiphon_testkit.open_files import open_files

TIMES = 20
GENEROUS_S = 120.0
AUTO = LinkSettings("auto", "cpu", slab_bytes=1 << 20, resume_window_s=5.0)
GLOO = LinkSettings("nccl", "cpu", slab_bytes=1 << 20, resume_window_s=5.0)


def descriptors() -> Counter[str]:
    """What is open here, by its name."""
    gc.collect()
    return Counter(open_files())


async def nothing_more_than(before: Counter[str], *, sockets: int = 0) -> None:
    """Wait until nothing is open that was not, but so many sockets. Other threads of the test
    process, such as gRPC's, open and close some at any moment; what is left behind stays."""
    more = descriptors() - before
    try:
        async with asyncio.timeout(GENEROUS_S):
            while more.total() > sockets or any("memfd" in each for each in more):
                await asyncio.sleep(0.01)
                more = descriptors() - before
    except TimeoutError:
        pytest.fail(f"left open: {more}")


@pytest.fixture(autouse=True, scope="module")
def torch_is_there() -> None:
    """Its import opens descriptors of its own, once."""
    check_possible(GLOO)


async def ignore(message: LinkMessage) -> None:
    """A link that nobody listens on."""


async def threads_ended() -> None:
    """Wait until whatever the loop's threads had begun has come back to the loop."""
    await asyncio.get_running_loop().shutdown_default_executor()
    for _ in range(3):  # The thread's future, the loop's own, and who waits for that.
        await asyncio.sleep(0)


async def test_nothing_is_open_when_attachments_to_a_slab_are_cancelled() -> None:
    sender = SlabSender(Slab(1 << 20))
    offer = sender.offer()
    before = descriptors()
    attaching = [asyncio.create_task(attach_best([offer], AUTO)) for _ in range(TIMES)]
    await asyncio.sleep(0)
    for task in attaching:
        task.cancel()
    await asyncio.wait(attaching)
    await threads_ended()
    await nothing_more_than(before)
    sender.close()


async def test_nothing_is_open_when_the_making_of_senders_is_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registry, "candidates", lambda settings: ("shared_memory", "nccl"))
    before = descriptors()
    # No more: a dozen of torch's stores at a time cannot reach each other.
    making = [asyncio.create_task(make_senders(AUTO, "127.0.0.1:9", ignore)) for _ in range(4)]
    await asyncio.sleep(0)
    for task in making:
        task.cancel()
    await asyncio.wait(making)
    await threads_ended()
    for thread in threading.enumerate():
        if thread.name == "collective sender":
            thread.join(50.0)
    # torch closes the last of its servers' sockets when it likes.
    await nothing_more_than(before, sockets=len(making) - 1)


async def test_what_a_thread_makes_for_nobody_is_dropped() -> None:
    going, dropped = threading.Event(), asyncio.get_running_loop().create_future()
    making = asyncio.create_task(
        made_on_thread(lambda: going.wait(60) and "made", dropped.set_result)
    )
    await asyncio.sleep(0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    assert not dropped.done()
    going.set()
    assert await dropped == "made"


async def test_what_a_thread_raises_is_raised_and_for_nobody_is_forgotten() -> None:
    going = threading.Event()

    def fail() -> None:
        going.wait(60)
        raise OSError("no")

    cancelled, waiting = (asyncio.create_task(made_on_thread(fail, print)) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    going.set()
    with pytest.raises(OSError, match="no"):
        await waiting
    await threads_ended()
    assert cancelled.cancelled()


async def test_rendezvous_is_closed_with_its_sender_though_somebody_holds_that() -> None:
    (sender,), _ = await make_senders(GLOO, "127.0.0.1:9", ignore)
    host, _, port = sender.offer().descriptor.decode().rpartition(":")
    sender.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection((host, int(port)), timeout=10).close()
