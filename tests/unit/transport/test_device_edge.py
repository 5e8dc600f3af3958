from __future__ import annotations

import gc
import threading

import ml_dtypes
import numpy as np
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon.transport.device_edge import (
    UNIT_BYTES,
    NoStream,
    Staging,
    ToDevice,
    ToHost,
    host_array,
    host_tensor,
    on_device,
)
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.late_copies import LateCopies

CAPACITY = 4 * UNIT_BYTES
CPU = torch.device("cpu")


def staging() -> Staging:
    return Staging(CAPACITY, pinned=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("shape", [(7,), (3, 5), (), (0, 4)])
def test_values_arrive_when_copies_are_made_at_once(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    tensor = torch.arange(15)[: int(np.prod(shape))].reshape(shape).to(dtype)
    to_host = ToHost(NoStream(), staging())
    array = to_host.copy(tensor)
    assert to_host.seal() is None
    assert array.shape == shape
    assert torch.equal(host_tensor(np.array(array)), tensor)
    to_device = ToDevice(CPU, NoStream(), staging())
    assert torch.equal(to_device.copy(np.array(array)), tensor)
    assert to_host.waited == to_device.waited == 0


def test_engine_goes_on_before_the_copy_is_made_and_seal_waits_for_it() -> None:
    copies = LateCopies()
    to_host = ToHost(copies, staging())
    assert to_host.seal() is None
    first = to_host.copy(torch.full((4,), 1.0))
    second = to_host.copy(torch.full((2, 2), 2.0).T)
    assert copies.made == 0
    wait = to_host.seal()
    assert wait is not None
    assert to_host.seal() is None
    wait()
    assert first.tolist() == [1.0] * 4
    assert second.tolist() == [[2.0] * 2] * 2


def test_batch_is_one_copy_whose_place_is_free_when_its_last_slice_is_gone() -> None:
    place = staging()
    copies = LateCopies()
    to_host = ToHost(copies, place)
    slices = [row[2:4] for row in to_host.copy(torch.arange(12.0).reshape(3, 4))]
    wait = to_host.seal()
    assert wait is not None
    wait()
    assert copies.begun == 1
    assert [each.tolist() for each in slices] == [[2, 3], [6, 7], [10, 11]]
    del slices[:2]
    gc.collect()
    assert place.used == 1
    thread = threading.Thread(target=slices.clear)
    thread.start()
    thread.join()
    assert place.used == 0


def test_engine_waits_for_its_copy_when_every_place_is_taken() -> None:
    place = staging()
    copies = LateCopies()
    to_host = ToHost(copies, place)
    kept = [to_host.copy(torch.zeros(UNIT_BYTES // 4)) for _ in range(4)]
    more = torch.arange(3.0)
    assert to_host.copy(more).tolist() == [0, 1, 2]
    assert (to_host.waited, copies.begun) == (1, 4)
    kept.pop()
    gc.collect()
    kept.append(to_host.copy(more))
    assert (to_host.waited, copies.begun) == (1, 5)


def test_inputs_keep_their_place_until_their_copy_is_made() -> None:
    place = staging()
    copies = LateCopies()
    to_device = ToDevice(CPU, copies, place)
    row = np.arange(6, dtype=np.float32).astype(ml_dtypes.bfloat16)
    target = to_device.copy(row)
    row[:] = 0  # It has been given up.
    assert len(copies.preceded) == 1
    gc.collect()
    assert place.used == 1
    copies.preceded[0].synchronize()
    assert target.tolist() == [0, 1, 2, 3, 4, 5]
    to_device.copy(row)
    assert place.used == 1
    full = ToDevice(CPU, copies, Staging(UNIT_BYTES, pinned=False))
    full.copy(row)
    assert full.copy(row + 1).tolist() == [1] * 6
    assert full.waited == 1


def test_mark_is_of_the_copies_since_the_last_when_some_have_begun() -> None:
    copies = LateCopies()
    to_host = ToHost(copies, staging())
    assert to_host.mark() is None
    array = to_host.copy(torch.arange(3))
    mark = to_host.mark()
    assert mark is not None
    assert to_host.mark() is to_host.seal() is None
    assert not mark.query()
    mark.synchronize()
    assert mark.query()
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize("dtype", [None, torch.int64, torch.float64])
def test_numbers_have_the_dtype_and_shape_when_they_are_brought_to_a_device(
    dtype: torch.dtype | None,
) -> None:
    pairs = on_device([(1, 2), (3, 4)], CPU, dtype)
    assert torch.equal(pairs, torch.tensor([[1, 2], [3, 4]], dtype=dtype))
    array = np.arange(4.0)
    assert torch.equal(on_device(array, CPU, dtype), torch.arange(4.0, dtype=dtype or torch.double))


def test_nothing_is_copied_on_a_cpu_when_nothing_is_said() -> None:
    config = StageConfig()
    rows = torch.arange(4.0)
    array = ToHost.of(config).copy(rows)
    assert array.ctypes.data == rows.data_ptr()
    assert ToDevice.of(config).copy(array).data_ptr() == rows.data_ptr()
    assert host_array(rows).ctypes.data == rows.data_ptr()


def test_staging_is_refused_when_its_size_is_no_power_of_two() -> None:
    with pytest.raises(InvalidArgument, match="power of two"):
        ToHost.of(stage_config(staging_bytes=3 << 16))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_values_arrive_and_the_engines_stream_waits_when_the_device_has_streams() -> None:
    config = stage_config(device="cuda", staging_bytes=1 << 24)
    to_host, to_device = ToHost.of(config), ToDevice.of(config)
    rows = torch.arange(1 << 20, dtype=torch.float32)
    for turn in range(20):
        there = to_device.copy((rows + turn).numpy())
        array = to_host.copy(there * 2)
        wait = to_host.seal()
        if wait is not None:
            wait()
        np.testing.assert_array_equal(array, ((rows + turn) * 2).numpy())
    assert to_host.waited == to_device.waited == 0
