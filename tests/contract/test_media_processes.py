"""Child processes that decode: they end with the request that wanted them, and are bounded."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from antiphon_gateway.admission.fair_slots import FairSlots
from antiphon_gateway.media.decoding.bounds import RejectedRecording
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.decoding.processes import LANES
from benchmarks.hostile import files
from tests.contract import media_files
from tests.contract.fake_stages import THINKER
from tests.contract.served_gateway import ServedGateway, serve_gateway
from tests.contract.test_audio_input import FIELD, ask, tone, wav

pytestmark = pytest.mark.asyncio(loop_scope="session")

# A decoder of the last lane hardly gets any time while other tests take all cores.
EQUAL_LANES = tuple(replace(each, niceness=0) for each in LANES)

WEBM = b"\x1a\x45\xdf\xa3" + bytes(100)
STUCK = """#!/bin/sh
echo $$ > {fifo}
exec sleep 1000
"""


class Children:
    """Child processes of a program that tells its process id and then does not end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._fifo = folder / "started"
        os.mkfifo(self._fifo)
        self._told = asyncio.StreamReader()
        self._transport: asyncio.BaseTransport
        media_files.program(folder, STUCK.format(fifo=self._fifo))
        monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")

    async def listen(self) -> None:
        """Take what the processes tell from now on."""
        # Open for writing, too: the end of one process is not the end of what is told.
        descriptor = os.open(self._fifo, os.O_RDWR | os.O_NONBLOCK)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(self._told), os.fdopen(descriptor, "rb", 0)
        )

    async def started(self) -> int:
        """The process id of the next."""
        return int(await self._told.readline())

    def close(self) -> None:
        """Listen no more."""
        self._transport.close()

    async def ended(self, pid: int) -> None:
        """Return when the process is gone."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        gone, loop = asyncio.Event(), asyncio.get_running_loop()
        loop.add_reader(descriptor, gone.set)
        try:
            await gone.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)


@pytest_asyncio.fixture(loop_scope="session")
async def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Children]:
    opened = Children(tmp_path, monkeypatch)
    await opened.listen()
    try:
        yield opened
    finally:
        opened.close()


class WatchedSlots(FairSlots):
    """Slots that report that one was asked for."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.asked = asyncio.Event()

    async def take(self, key: str, size_bytes: int) -> None:
        """Take a slot."""
        self.asked.set()
        await super().take(key, size_bytes)


def watched_slots(monkeypatch: pytest.MonkeyPatch) -> list[WatchedSlots]:
    """Those of each lane of the decoders that are made."""
    made: list[WatchedSlots] = []

    def make(count: int) -> WatchedSlots:
        made.append(WatchedSlots(count))
        return made[-1]

    monkeypatch.setattr("antiphon_gateway.media.decoding.processes.FairSlots", make)
    return made


async def test_a_slot_is_taken_until_its_child_has_ended(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("antiphon_gateway.media.decoding.processes.LANES", EQUAL_LANES[-1:])
    made = watched_slots(monkeypatch)
    async with open_decoder() as decoder:
        (slots,) = made
        tasks, pids = [], list[int]()
        for _ in range(3):
            slots.asked.clear()
            tasks.append(asyncio.create_task(decoder.decode(WEBM, 16_000, 60.0, "")))
            await slots.asked.wait()
            if not pids:
                pids.append(await children.started())
        # Whoever got a slot would have asked for a child by now.
        for _ in range(20):
            await asyncio.sleep(0)
        assert decoder.processes.running == 1
        for leaving in tasks[:2]:
            leaving.cancel()
            pids.append(await children.started())
            assert decoder.processes.running == 1
            with pytest.raises(ProcessLookupError):
                os.kill(pids[-2], 0)
        tasks[2].cancel()
        await children.ended(pids[-1])
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_that_leaves_takes_its_decoder_with_it(children: Children) -> None:
    async with serve_gateway(decoder_processes=1) as served:
        for _ in range(2):
            asking = asyncio.create_task(ask(served, WEBM))
            pid = await children.started()
            asking.cancel()
            await children.ended(pid)
        assert not served.fakes[THINKER].sessions


async def test_a_deadline_ends_the_decoder(children: Children) -> None:
    async with serve_gateway(decoder_processes=1, request_timeout_s=3.0) as served:
        # The decode server takes its time to start, and is no part of what is tried.
        flac = files.sound_file("FLAC", "PCM_16", 1, 16_000, 0.1)
        await served.gateway.calls.media.decoder.decode(flac, 16_000, 1.0, "")
        response, pid = await asyncio.gather(ask(served, WEBM), children.started())
        assert response.status_code == 504, response.text
        await children.ended(pid)


async def test_a_gateway_that_stops_leaves_no_decoder(children: Children) -> None:
    async with serve_gateway() as served:
        asking = asyncio.create_task(ask(served, WEBM))
        pid = await children.started()
    await children.ended(pid)
    assert (await asyncio.gather(asking, return_exceptions=True))[0]


async def test_a_decoder_that_is_killed_is_told_as_retryable(children: Children) -> None:
    async with serve_gateway() as served:
        asking = asyncio.create_task(ask(served, WEBM))
        os.kill(await children.started(), signal.SIGKILL)
        response = await asking
        assert response.status_code == 503, response.text
        assert "send it again" in response.json()["error"]["message"]


async def test_a_recording_that_is_being_decoded_takes_no_call_and_no_slot(
    children: Children,
) -> None:
    async with serve_gateway(max_calls=1) as served:
        asking = asyncio.create_task(ask(served, WEBM))
        await children.started()
        assert (await served.chat()).status_code == 200
        asking.cancel()


async def test_small_recordings_do_not_wait_for_decoders(children: Children) -> None:
    async with serve_gateway(decoder_processes=1) as served:
        asking = [asyncio.create_task(ask(served, WEBM)) for _ in range(3)]
        await children.started()
        response = await ask(served, wav(tone(16_000), 16_000))
        assert response.status_code == 200, response.text
        for each in asking:
            each.cancel()


@media_files.needs_ffmpeg()
@pytest.mark.parametrize("kind", ["webm", "m4a-index-end", "adts"])
async def test_a_file_that_ends_in_the_middle_is_read_as_far_as_it_goes_or_refused(
    served: ServedGateway, kind: str
) -> None:
    data = media_files.muxed(kind, 1.0)
    response = await ask(served, data[: len(data) // 2])
    if kind == "m4a-index-end":
        assert (response.status_code, response.json()["error"]["param"]) == (400, FIELD)
    else:
        assert response.status_code == 200, response.text


@media_files.needs_ffmpeg()
@pytest.mark.parametrize("kind", ["webm-live", "adts"])
async def test_a_container_that_is_too_long_is_refused(served: ServedGateway, kind: str) -> None:
    response = await ask(served, media_files.muxed(kind, 3.0))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, FIELD)
    assert "seconds of audio" in error["message"]


@asynccontextmanager
async def open_decoder(processes: int = 1) -> AsyncIterator[MediaDecoder]:
    decoder = MediaDecoder(processes)
    try:
        yield decoder
    finally:
        await decoder.close()


async def test_the_server_is_started_again_when_it_was_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    popen, servers = subprocess.Popen, list[subprocess.Popen[bytes]]()

    def noted(arguments: Sequence[str], **how: Any) -> subprocess.Popen[bytes]:
        process = popen(arguments, **how)
        # This replaces it for all modules.
        if "antiphon_gateway.media.decoding.decode_server" in arguments:
            servers.append(process)
        return process

    monkeypatch.setattr("antiphon_gateway.media.decoding.processes.subprocess.Popen", noted)
    flac = files.sound_file("FLAC", "PCM_16", 1, 16_000, 0.1)
    async with open_decoder() as decoder:
        first = await decoder.decode(flac, 16_000, 1.0, "")
        (server,) = servers
        server.kill()
        gone = asyncio.Event()
        loop = asyncio.get_running_loop()
        descriptor = os.pidfd_open(server.pid)
        loop.add_reader(descriptor, gone.set)
        await gone.wait()
        loop.remove_reader(descriptor)
        os.close(descriptor)
        second = await decoder.decode(flac, 16_000, 1.0, "")
    np.testing.assert_array_equal(first, second)


async def test_a_decoder_that_exceeds_its_memory_is_the_files_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("antiphon_gateway.media.decoding.processes.MEMORY_BYTES", 1 << 20)
    async with open_decoder() as decoder:
        with pytest.raises(RejectedRecording, match="can't be decoded as FLAC"):
            await decoder.decode(files.sound_file("FLAC", "PCM_16", 1, 8_000, 1.0), 16_000, 9.0, "")


async def test_a_file_that_takes_too_long_is_tried_in_every_lane_and_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lanes = tuple(replace(each, cpu_s=min(each.cpu_s, 0.5)) for each in EQUAL_LANES)
    monkeypatch.setattr("antiphon_gateway.media.decoding.processes.LANES", lanes)
    async with open_decoder() as decoder:
        with pytest.raises(RejectedRecording, match=r"more than 0\.5 s of CPU time"):
            await decoder.decode(files.mp3_with_junk(junk_words=400_000), 16_000, 60.0, "")


COSTLY: dict[str, tuple[Callable[[], bytes], dict[str, Any]]] = {
    # A file, and the bounds of the first lane that do not hold it back.
    "flac-header": (
        lambda: files.sound_file("FLAC", "PCM_16", 8, 96_000, 20.0),
        {"cpu_s": 30.0, "file_bytes": sys.maxsize},
    ),
    "webm-header": (
        lambda: media_files.muxed("webm", 5.0),
        {"cpu_s": 30.0, "cost_samples": 200_000},
    ),
    "mp3-time": (
        lambda: files.mp3_with_junk(junk_words=26_000),
        {"cost_samples": sys.maxsize, "file_bytes": sys.maxsize},
    ),
    "flac-bytes": (
        lambda: files.sound_file("FLAC", "PCM_16", 1, 16_000, 1.0) + bytes(256 << 10),
        {"cpu_s": 30.0, "cost_samples": sys.maxsize},
    ),
}


@media_files.needs_ffmpeg()
@pytest.mark.parametrize("kind", COSTLY)
async def test_small_recordings_do_not_wait_for_costly_ones(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, bounds = COSTLY[kind]
    # On a slow machine the costly file may take more than the second lane has.
    patient = replace(EQUAL_LANES[1], cpu_s=30.0)
    lanes = (replace(EQUAL_LANES[0], **bounds), patient, *EQUAL_LANES[2:])
    made = watched_slots(monkeypatch)
    monkeypatch.setattr("antiphon_gateway.media.decoding.processes.LANES", lanes)
    small = files.sound_file("FLAC", "PCM_16", 1, 16_000, 0.1)
    async with open_decoder() as decoder:
        _, slots, _ = made
        await slots.take("", 0)
        slots.asked.clear()
        costly = asyncio.create_task(decoder.decode(make(), 16_000, 600.0, ""))
        asked = asyncio.create_task(slots.asked.wait())
        await asyncio.wait((costly, asked), return_when=asyncio.FIRST_COMPLETED)
        assert not costly.done()
        # The only slot of the first lane is free while the costly file waits for the next one.
        assert len(await decoder.decode(small, 16_000, 1.0, "")) == 1_600
        slots.free()
        assert len(await costly) > 0


async def test_children_of_later_lanes_yield_to_those_of_earlier_ones(
    children: Children, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, nice = os.getpriority(os.PRIO_PROCESS, 0), []
    for first in range(len(LANES)):
        monkeypatch.setattr("antiphon_gateway.media.decoding.processes.LANES", LANES[first:])
        async with open_decoder() as decoder:
            asking = asyncio.create_task(decoder.decode(WEBM, 16_000, 60.0, ""))
            nice.append(os.getpriority(os.PRIO_PROCESS, await children.started()))
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
    assert nice[0] == own
    assert nice == sorted(set(nice)) or own == 19


async def order_of(*waiting: tuple[str, int], leaves: int = -1) -> list[tuple[str, int]]:
    """The order in which those who wait get the only slot; the one at `leaves` gives up."""
    slots = FairSlots(1)
    order: list[tuple[str, int]] = []
    await slots.take("first", 0)

    async def hold(key: str, size: int) -> None:
        await slots.take(key, size)
        order.append((key, size))
        slots.free()

    tasks = [asyncio.create_task(hold(*each)) for each in waiting]
    await asyncio.sleep(0)
    if leaves >= 0:
        tasks[leaves].cancel()
        await asyncio.sleep(0)
    slots.free()
    await asyncio.gather(*tasks, return_exceptions=True)
    await slots.take("last", 0)
    return order


async def test_slots_go_round_the_keys() -> None:
    order = await order_of(*((key, 1) for key in "aaabcb"), leaves=1)
    assert [key for key, _ in order] == ["a", "b", "c", "a", "b"]


async def test_slots_of_one_key_go_to_the_smallest_and_the_oldest_in_turn() -> None:
    order = await order_of(("a", 9), ("a", 8), ("a", 1), ("a", 7), ("a", 2))
    assert [size for _, size in order] == [1, 9, 2, 8, 7]


async def test_a_slot_that_is_given_to_someone_who_left_goes_on() -> None:
    slots = FairSlots(1)
    await slots.take("a", 0)
    waiting = asyncio.create_task(slots.take("b", 0))
    await asyncio.sleep(0)
    slots.free()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await slots.take("c", 0)
