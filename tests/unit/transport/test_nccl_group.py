"""What a rank of NCCL asks of torch, without a device."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from antiphon.transport.payload import process_group
from antiphon.transport.payload.process_group import CONSUMER, PRODUCER, Group, Lane

HOST = "127.0.0.1"
WATCHDOG = ("TORCH_NCCL_BLOCKING_WAIT", "TORCH_NCCL_ASYNC_ERROR_HANDLING")


@dataclass
class Device:
    """What a device is asked for, each with the stream that is current then."""

    current: list[str] = field(default_factory=lambda: ["the engine's"])
    asked: list[tuple[str, str]] = field(default_factory=list)
    settings: dict[str, str | None] = field(default_factory=dict)
    aborted: threading.Event = field(default_factory=threading.Event)
    aborted_by: threading.Thread | None = None
    fails: bool = False

    def ask(self, what: str) -> None:
        self.asked.append((what, self.current[-1]))

    @contextlib.contextmanager
    def stream(self, name: str) -> Iterator[None]:
        self.current.append(name)
        yield
        self.current.pop()


class Work:
    def __init__(self, device: Device) -> None:
        self._device = device

    def wait(self, timeout: timedelta) -> None:
        self._device.ask("wait")
        if self._device.fails:
            raise RuntimeError("the other rank is gone")


class Ranks:
    """In the place of `ProcessGroupNCCL`."""

    Options = SimpleNamespace
    device: Device

    def __init__(self, store: object, rank: int, size: int, options: object) -> None:
        self.device.settings = {name: os.environ.get(name) for name in WATCHDOG}
        self.device.ask("join")

    def send(self, tensors: list[object], rank: int, tag: int) -> Work:
        self.device.ask("send")
        return Work(self.device)

    def recv(self, tensors: list[object], rank: int, tag: int) -> Work:
        self.device.ask("recv")
        return Work(self.device)

    def abort(self) -> None:
        self.device.aborted_by = threading.current_thread()
        self.device.aborted.set()


@dataclass
class Bytes:
    """As much of a tensor as a transfer needs."""

    device: Device

    def to(self, device: str) -> Bytes:
        self.device.ask("copy")
        return self

    def copy_(self, other: Bytes) -> None:
        self.device.ask("copy")


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.distributed, "ProcessGroupNCCL", Ranks, raising=False)
    monkeypatch.setattr(Ranks, "device", made, raising=False)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: "its own")
    monkeypatch.setattr(torch.cuda, "stream", made.stream)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch, "empty_like", lambda like, device: Bytes(made))
    monkeypatch.setenv(WATCHDOG[1], "3")
    return made


def group(rank: int) -> Group:
    """The other rank says that it comes."""
    store = torch.distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    store.set(f"here/{1 - rank}", b"")
    return Group(store, rank, "cuda", HOST)


@pytest.mark.parametrize("rank", [PRODUCER, CONSUMER])
def test_engines_stream_is_asked_for_nothing(device: Device, rank: int) -> None:
    joined = group(rank)
    act = (joined.send, joined.receive)[rank]
    act(cast(Any, Bytes(device)))
    expected = ["join", *(["copy", "send", "wait"], ["recv", "wait", "copy"])[rank]]
    assert device.asked == [(what, "its own") for what in expected]


def test_group_has_no_watchdog_and_others_are_as_ever(device: Device) -> None:
    group(PRODUCER).send(cast(Any, Bytes(device)))
    # torch: without blocking waits there is one, which ends the process when a peer is gone.
    assert device.settings == {WATCHDOG[0]: "1", WATCHDOG[1]: "0"}
    assert (os.environ.get(WATCHDOG[0]), os.environ[WATCHDOG[1]]) == (None, "3")


def test_survivor_is_told_and_lives_when_its_peer_dies(device: Device) -> None:
    joined = group(PRODUCER)
    joined.send(cast(Any, Bytes(device)))
    device.fails = True
    with pytest.raises(RuntimeError, match="is gone"):
        joined.send(cast(Any, Bytes(device)))
    joined.close()
    # Not by whoever closes, which is an event loop.
    assert device.aborted.wait(60)
    assert device.aborted_by is not threading.current_thread()


def test_rank_that_never_comes_is_not_waited_for_in_the_library(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "TIMEOUT", timedelta(seconds=0.05))
    store = torch.distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    with pytest.raises(RuntimeError):
        Group(store, PRODUCER, "cuda", HOST).send(cast(Any, Bytes(device)))
    assert not device.asked


def test_call_that_never_returns_keeps_nobody() -> None:
    before = set(threading.enumerate())
    lane, forever, began = Lane("test"), threading.Event(), threading.Event()

    def hang() -> None:
        began.set()
        forever.wait()

    lane.submit(hang)
    behind = lane.submit(int)
    assert began.wait(60)
    lane.close()
    (thread,) = {each for each in threading.enumerate() if each.name == "test"} - before
    assert thread.daemon
    with pytest.raises(RuntimeError, match="left"):
        lane.submit(int).result(60)
    forever.set()
    with pytest.raises(RuntimeError, match="left"):
        behind.result(60)
