from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from antiphon.errors import Unavailable
from antiphon.values.chunk import Tensor
from antiphon_gateway.voice_activity.endpointing import EndpointRule, SpeechEdge
from antiphon_gateway.voice_activity.listener import MOST_FRAMES, VoiceListener
from antiphon_gateway.voice_activity.network import FRAME_SAMPLES, VoiceNetwork
from antiphon_gateway.voice_activity.vad_stream import VadStream

RULE = EndpointRule(silence_s=0.2)


@pytest.fixture
def listener() -> Iterator[VoiceListener]:
    listener = VoiceListener()
    yield listener
    listener.close()


def recording() -> bytes:
    """A sentence in noise, 16 kHz."""
    with np.load(Path(__file__).with_name("onnxruntime.npz")) as file:
        return bytes(file["samples"].tobytes())


async def in_pieces(listener: VoiceListener, size: int) -> list[SpeechEdge]:
    ear, pcm16 = VadStream(16_000, RULE), recording()
    edges = []
    for start in range(0, len(pcm16), size):
        edges += await listener.listen(ear, pcm16[start : start + size])
    return edges


async def test_many_conversations_hear_what_one_hears(listener: VoiceListener) -> None:
    alone = await in_pieces(listener, 1 << 20)
    assert [edge.begins for edge in alone] == [True, False]
    sizes = [320, 1000, 1024, 1026, 6400] * (MOST_FRAMES // 4)
    assert len(sizes) > MOST_FRAMES
    together = await asyncio.gather(*(in_pieces(listener, size) for size in sizes))
    assert all(edges == alone for edges in together)


async def test_audio_that_arrives_together_is_one_call_of_the_network(
    listener: VoiceListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[list[int]] = []
    hear = VoiceNetwork.hear

    def counted(
        self: VoiceNetwork, sounds: Sequence[Tensor], memories: Sequence[Tensor]
    ) -> tuple[list[list[float]], list[Tensor]]:
        sizes.append([len(each) for each in sounds])
        return hear(self, sounds, memories)

    monkeypatch.setattr(VoiceNetwork, "hear", counted)
    pcm16, ears = recording()[: 2 * 512 * 20], [VadStream(16_000, RULE) for _ in range(5)]
    for _ in range(2):
        await asyncio.gather(*(listener.listen(ear, pcm16) for ear in ears))
    assert sizes == [[20] * 5] * 2


async def test_fault_in_one_conversations_audio_is_not_the_others(listener: VoiceListener) -> None:
    half_a_sample = listener.listen(VadStream(16_000, RULE), b"x")
    broken, whole = await asyncio.gather(
        half_a_sample, in_pieces(listener, 6400), return_exceptions=True
    )
    assert isinstance(broken, ValueError)
    assert len(whole) == 2


async def test_closing_tells_those_who_wait_and_those_who_come(listener: VoiceListener) -> None:
    waiting = asyncio.create_task(listener.listen(VadStream(16_000, RULE), recording() * 50))
    await listener.listen(VadStream(16_000, RULE), b"")
    listener.close()
    with pytest.raises(Unavailable):
        await waiting
    with pytest.raises(Unavailable):
        await listener.listen(VadStream(16_000, RULE), b"")


async def test_closing_tells_those_whose_audio_has_not_been_handed_over(
    listener: VoiceListener,
) -> None:
    coming = asyncio.create_task(listener.listen(VadStream(16_000, RULE), b""))
    # The audio comes in this pass of the event loop and would be handed over in the next one.
    await asyncio.sleep(0)
    listener.close()
    async with asyncio.timeout(120):
        with pytest.raises(Unavailable):
            await coming


async def test_audio_that_has_been_heard_is_not_kept(listener: VoiceListener) -> None:
    gone = threading.Event()
    ear = VadStream(16_000, RULE)
    weakref.finalize(ear, gone.set)
    await listener.listen(ear, recording())
    del ear
    # Nobody speaks after it: the thread waits, and keeps nothing meanwhile.
    assert await asyncio.to_thread(gone.wait, 60)


async def test_one_who_left_is_heard_no_further(listener: VoiceListener) -> None:
    leaving = asyncio.create_task(listener.listen(VadStream(16_000, RULE), recording() * 500))
    await listener.listen(VadStream(16_000, RULE), b"")
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    assert len(await in_pieces(listener, 6400)) == 2


@pytest.mark.parametrize("passes", [1, 3])
async def test_closing_tells_those_who_come_while_others_are_heard(
    listener: VoiceListener, passes: int
) -> None:
    entered, come = threading.Event(), threading.Event()

    class Closing(VadStream):
        """Has the listener closed while it is heard itself."""

        def frames(self, pcm16: bytes) -> Tensor:
            entered.set()
            assert come.wait(60)
            with contextlib.suppress(RuntimeError):
                # That the thread cannot wait for itself.
                listener.close()
            return super().frames(pcm16)

    long = recording() * 5
    assert len(long) > 2 * FRAME_SAMPLES * MOST_FRAMES
    heard = asyncio.create_task(listener.listen(Closing(16_000, RULE), long))
    await asyncio.to_thread(entered.wait, 60)
    late = asyncio.create_task(listener.listen(VadStream(16_000, RULE), recording()))
    # Its audio is handed to the thread after the pass of the event loop in which it comes.
    for _ in range(passes):
        await asyncio.sleep(0)
    come.set()
    async with asyncio.timeout(120):
        for task in (heard, late):
            with pytest.raises(Unavailable):
                await task


async def test_thread_that_cannot_start_is_started_with_the_next_audio(
    listener: VoiceListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", none_left)
        with pytest.raises(RuntimeError):
            await listener.listen(VadStream(16_000, RULE), recording())
    async with asyncio.timeout(120):
        assert len(await in_pieces(listener, 6400)) == 2
