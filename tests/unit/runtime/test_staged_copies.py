"""Weights reach a device through bounded host memory, and loading reports its progress."""

from __future__ import annotations

import io
import logging
import re
import weakref
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from antiphon.runtime.checkpoint import staged_copies
from antiphon.runtime.checkpoint.loading_progress import (
    BAR_STEPS,
    LOG_STEPS,
    MIN_BYTES,
    LoadingProgress,
)
from antiphon.runtime.checkpoint.staged_copies import BUFFERS, StagedCopies
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import WeightReader, Weights
from tests.late_device import LateDevice
from tests.own_records import lines_of

BYTES = 64
CPU = torch.device("cpu")
GB = 10**9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_targets_equal_the_stored_tensors_when_the_device_copies_late(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = LateDevice(monkeypatch)
    copies = StagedCopies(CPU, buffer_bytes=BYTES, pinned=False, new_event=device.new_event)
    # 70 numbers fill no whole number of buffers in any of these dtypes.
    whole = torch.zeros(3, 10, 7, dtype=dtype)
    stored = [torch.randn(10, 7).mul(9).bfloat16() for _ in range(3)]
    for at, each in enumerate(stored):
        copies.copy(whole[at], each)
    copies.copy(whole[0, :0], torch.zeros(0, 7))
    copies.finish()
    assert device.pending == []
    assert torch.equal(whole, torch.stack(stored).to(dtype))
    # The host filled the second buffer before the device had read the first.
    assert device.most_pending == BUFFERS


class Part(torch.nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(64, 64) for _ in range(layers))


@pytest.fixture
def weights(tmp_path: Path) -> Weights:
    tensors = Part(6).state_dict()
    stored = {f"part.{name}": each.bfloat16().contiguous() for name, each in tensors.items()}
    safetensors.torch.save_file(stored, tmp_path / "model.safetensors")
    return Weights(tmp_path)


def load(weights: Weights) -> Any:
    return load_submodule(Part, 6, "part.", weights, dtype=torch.float32, device="cpu")


def test_one_stored_tensor_is_held_at_a_time_and_is_a_view_of_its_file(
    weights: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[weakref.ref[Tensor]] = []
    alive: list[int] = []
    file_bytes = (weights.folder / "model.safetensors").stat().st_size
    plain = WeightReader.read

    def watched(self: WeightReader, name: str) -> Tensor:
        alive.append(sum(each() is not None for each in read))
        made = plain(self, name)
        read.append(weakref.ref(made))
        return made

    monkeypatch.setattr(WeightReader, "read", watched)
    module = load(weights)
    assert len(read) == 12
    assert max(alive) <= 1
    assert sum(each() is not None for each in read) == 0
    held = sum(each.untyped_storage().nbytes() for each in module.parameters())
    assert held <= 2 * file_bytes


def test_only_a_gpu_has_staged_copies(weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is on the host here, and the copies are made late."""
    device = LateDevice(monkeypatch)
    asked: list[str] = []

    def staged(device_asked: torch.device) -> StagedCopies:
        asked.append(device_asked.type)
        return StagedCopies(CPU, buffer_bytes=BYTES, pinned=False, new_event=device.new_event)

    monkeypatch.setattr(staged_copies, "StagedCopies", staged)
    for kind, expected in {"cpu": [], "meta": [], "cuda": ["cuda"], "cuda:1": ["cuda"]}.items():
        asked.clear()
        target = torch.zeros(64, 64)
        with weights.open(kind) as reader:
            reader.read_into(target, "part.layers.0.weight")
        assert asked == expected, kind
        assert device.pending == []
        assert torch.equal(target, weights.read("part.layers.0.weight").float())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_weights_on_a_gpu_are_those_of_the_file(weights: Weights) -> None:
    made: Any = load_submodule(Part, 6, "part.", weights, dtype=torch.float32, device="cuda")
    for name, each in load(weights).state_dict().items():
        assert torch.equal(made.state_dict()[name].cpu(), each)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def load_in_steps(progress: LoadingProgress, steps: int, size: int) -> None:
    with progress:
        for _ in range(steps):
            progress.add(size)


def test_log_has_at_most_ten_lines_and_a_summary(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        load_in_steps(LoadingProgress("thinker.*", 60 * GB, io.StringIO()), 60_000, GB // 1000)
    *steps, summary = lines_of(caplog, LoadingProgress.__module__)
    assert len(steps) == LOG_STEPS - 1
    assert re.fullmatch(r"thinker\.\*: loaded 6\.0 of 60\.0 GB in \d+ s", steps[0])
    assert re.fullmatch(r"thinker\.\*: loaded 60\.00 GB in \d+\.\d s \(\d+\.\d\d GB/s\)", summary)


def test_terminal_has_a_bar_and_the_log_a_summary(caplog: pytest.LogCaptureFixture) -> None:
    stream = Terminal()
    with caplog.at_level(logging.INFO):
        load_in_steps(LoadingProgress("talker.*", 6 * GB, stream), 600, GB // 100)
    drawn = stream.getvalue()
    assert drawn.count("\r") == BAR_STEPS - 1
    assert re.search(r"\rtalker\.\* \[#{15} {15}\] 3\.0 of 6\.0 GB in \d+ s\r", drawn)
    assert drawn.endswith("\n")
    assert len(lines_of(caplog, LoadingProgress.__module__)) == 1


def test_failed_loading_ends_the_bar_and_logs_no_summary(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = Terminal()
    progress = LoadingProgress("talker.*", 6 * GB, stream)

    def fail() -> None:
        with progress:
            progress.add(GB)
            raise OSError("disk")

    with caplog.at_level(logging.INFO), pytest.raises(OSError, match="disk"):
        fail()
    assert stream.getvalue().endswith("\n")
    assert lines_of(caplog, LoadingProgress.__module__) == []


def test_small_part_logs_only_its_summary(
    caplog: pytest.LogCaptureFixture, weights: Weights
) -> None:
    stream = Terminal()
    progress = LoadingProgress("code2wav.*", MIN_BYTES - 1, stream)
    progress.add(MIN_BYTES // 2)
    assert stream.getvalue() == ""
    with caplog.at_level(logging.INFO):
        load(weights)
    (summary,) = lines_of(caplog, LoadingProgress.__module__)
    assert summary.startswith("part.*: loaded 0.00 GB in ")
