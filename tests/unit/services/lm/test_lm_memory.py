"""What slots take is refused before it is taken, with the numbers that would fit, and is said."""

from __future__ import annotations

import logging
import re

import pytest
import torch

from antiphon.errors import InvalidArgument
from antiphon_services.lm import memory
from antiphon_services.lm.kv_cache import CacheShape, KVCache
from antiphon_services.lm.memory import (
    WORKING_BYTES,
    SlotMemory,
    free_bytes,
    module_bytes,
    say_memory,
)
from tests.own_records import lines_of

# A stand-in for a GPU: nothing is taken of it, and torch says of it what the tests want.
GPU = torch.device("meta")
CPU = torch.device("cpu")
FREE = 10_000_000_000 + WORKING_BYTES
A_POSITION = 100_000


class Stub:
    """A GPU with so much free memory, of which torch holds some without using it."""

    free, reserved, allocated = FREE, 0, 0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> type[Stub]:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (Stub.free, 1 << 40))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: Stub.reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: Stub.allocated)
    for name in ("free", "reserved", "allocated"):
        monkeypatch.setattr(Stub, name, getattr(Stub, name))
    return Stub


def test_slots_that_just_fit_are_taken(gpu: type[Stub]) -> None:
    SlotMemory(10, 10_000, A_POSITION, GPU).require_room()


def test_refusal_names_the_settings_and_what_would_fit(gpu: type[Stub]) -> None:
    asked = SlotMemory(16, 10_000, A_POSITION, GPU)
    with pytest.raises(InvalidArgument, match=r"^slots, context_limit: ") as refused:
        asked.require_room()
    assert refused.value.field == "slots"
    told = re.search(
        r"enough for (\d+) slots, or for a context_limit of (\d+);", str(refused.value)
    )
    assert told is not None
    slots, positions = map(int, told.groups())
    assert (slots, positions) == (10, 6250)
    SlotMemory(slots, 10_000, A_POSITION, GPU).require_room()
    SlotMemory(16, positions, A_POSITION, GPU).require_room()


def test_what_grows_has_to_fit_on_a_gpu_alone(gpu: type[Stub]) -> None:
    asked = SlotMemory(16, 10_000, A_POSITION, torch.device("cuda"))
    with pytest.raises(InvalidArgument, match="enough for 10 slots"):
        asked.require_room(grows=True)
    SlotMemory(1 << 20, 1 << 20, A_POSITION, CPU).require_room(grows=True)


def test_nothing_fits_where_nothing_is_free(gpu: type[Stub]) -> None:
    gpu.free = WORKING_BYTES // 2
    with pytest.raises(InvalidArgument, match=r"enough for 0 slots, or for a context_limit of 0;"):
        SlotMemory(1, 1, A_POSITION, GPU).require_room()


def test_what_torch_holds_unused_is_free(gpu: type[Stub]) -> None:
    gpu.reserved, gpu.allocated = 5_000, 3_000
    assert free_bytes(GPU) == FREE + 2_000


def test_cache_that_takes_all_is_refused_before_it_takes_any(
    gpu: type[Stub], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[object] = []
    monkeypatch.setattr(KVCache, "_zeros", lambda self, capacity: taken.append(capacity))
    shape = CacheShape(2, 2, 64, 0.125, torch.bfloat16, GPU)
    with pytest.raises(InvalidArgument, match="slots, context_limit"):
        KVCache(shape, 1_000, 40_000)
    assert taken == []


def test_cpu_refuses_only_what_the_machine_could_never_hold(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_all_of_host", lambda: 1_000 * A_POSITION)
    SlotMemory(10, 100, A_POSITION, CPU).require_room()
    with pytest.raises(InvalidArgument, match="enough for 10 slots, or for a context_limit of 90;"):
        SlotMemory(11, 100, A_POSITION, CPU).require_room()
    shape = CacheShape(2, 2, 64, 0.125, torch.float32, CPU)
    # One that grows promises nothing.
    KVCache(shape, 1_000, 1_000_000, grows=True)


def test_one_line_says_what_is_taken_by_part(
    gpu: type[Stub], caplog: pytest.LogCaptureFixture
) -> None:
    gpu.reserved = 7_300_000_000
    slots = SlotMemory(4, 10_000, A_POSITION, GPU)
    parts = {"weights": 3_000_000_000, "encoders": 200_000_000, "none": 0}
    with caplog.at_level(logging.INFO, say_memory.__module__):
        say_memory("talker", slots, parts, there=slots.bytes)
        say_memory("thinker", SlotMemory(2, 10, 1_000, CPU), {"weights": 10_000_000}, there=0)
    on_gpu, on_cpu = lines_of(caplog, say_memory.__module__)
    assert on_gpu == (
        "talker: 7.30 GB on meta: weights 3.00, encoders 0.20, keys and values 4.00, "
        "tables, graphs and buffers 0.10; keys and values are those of 4 slots of 10000 positions: "
        "4.00 GB of them are there, 18.37 GB are free"
    )
    assert on_cpu == (
        "thinker: 0.01 GB on cpu: weights 0.01, keys and values 0.00; keys and values are those of "
        "2 slots of 10 positions: they are paid for as they are used"
    )


def test_weights_and_buffers_of_a_module_are_counted() -> None:
    module = torch.nn.BatchNorm1d(5)
    assert module_bytes(module) == 4 * 5 * 4 + 8
