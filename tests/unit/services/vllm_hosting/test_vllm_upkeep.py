"""What keeps vLLM running: its environment, the pauses between its lives, the mailbox."""

from __future__ import annotations

import asyncio
import threading

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, Internal, InvalidArgument
from antiphon_services.vllm import environment
from antiphon_services.vllm.background_thread import on_background_thread
from antiphon_services.vllm.mailbox import Ended, Mailbox
from antiphon_services.vllm.restarts import Restarts


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "is_installed", lambda: True)


def test_pauses_double_up_to_a_bound_and_start_over_after_a_long_life() -> None:
    restarts = Restarts(first_pause_s=1, longest_pause_s=5, forgiven_after_s=60)
    assert [restarts.pause_s(0) for _ in range(5)] == [1, 2, 4, 5, 5]
    assert restarts.pause_s(59) == 5
    assert restarts.pause_s(60) == 1
    assert restarts.pause_s(0) == 2


def test_mailbox_wakes_who_waits_when_something_comes() -> None:
    mailbox, ended = Mailbox(), Ended(3, Internal("it"))
    threading.Thread(target=mailbox.put, args=(ended,)).start()
    assert mailbox.take(None) == [ended]
    assert mailbox.take(0) == []


def test_mailbox_lets_go_of_who_waits_when_interrupted_and_only_once() -> None:
    mailbox = Mailbox()
    mailbox.interrupt()
    assert mailbox.take(None) == []
    threading.Thread(target=mailbox.interrupt).start()
    assert mailbox.take(None) == []
    assert mailbox.take(0.01) == []


@pytest.mark.usefixtures("installed")
def test_environment_keeps_what_the_operator_has_set() -> None:
    variables = {"OMP_NUM_THREADS": "8"}
    environment.prepare(StageConfig(threads=2), {}, variables)
    assert variables["OMP_NUM_THREADS"] == "8"
    assert variables["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    assert variables["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("device", "visible", "left"),
    [("cuda:1", "4,5,6", "5,6"), ("cuda:0", "4,5", "4,5"), ("cuda", "4,5", "4,5")],
)
def test_device_becomes_the_first_visible_one(device: str, visible: str, left: str) -> None:
    variables = {"CUDA_VISIBLE_DEVICES": visible}
    environment.prepare(StageConfig(device=device), {}, variables)
    assert variables["CUDA_VISIBLE_DEVICES"] == left
    assert "VLLM_CPU_OMP_THREADS_BIND" not in variables


@pytest.mark.usefixtures("installed")
def test_device_is_refused_when_it_is_not_visible() -> None:
    with pytest.raises(InvalidArgument, match="cuda:2") as raised:
        environment.prepare(StageConfig(device="cuda:2"), {}, {"CUDA_VISIBLE_DEVICES": "4,5"})
    assert raised.value.field == "device"


def test_engine_is_refused_with_the_remedy_when_vllm_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "is_installed", lambda: False)
    with pytest.raises(FailedPrecondition, match=r"pip install 'antiphon\[vllm\]'"):
        environment.prepare(StageConfig(engine="vllm"), {}, {})


async def test_work_aside_brings_what_it_returns_or_raises() -> None:
    assert await on_background_thread("work", lambda: 3) == 3
    with pytest.raises(ZeroDivisionError):
        await on_background_thread("work", lambda: 1 // 0)


async def test_work_aside_is_left_to_itself_when_nobody_waits_any_more() -> None:
    go, went = threading.Event(), threading.Event()

    def work() -> None:
        go.wait()
        went.set()

    task = asyncio.create_task(on_background_thread("work", work))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go.set()
    assert await asyncio.to_thread(went.wait, 30)
