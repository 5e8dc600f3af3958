"""What Inductor generates for a GPU: one kernel for each function, at the released widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antiphon_services.lm import kernels
from antiphon_testkit.launches import launches_on_meta
from benchmarks.operations.__main__ import count
from benchmarks.operations.generated import Spec, generated_for_cuda

BF16, ROWS = torch.bfloat16, 8
MOST = {
    "Qwen3-Omni, talker": 1284,
    "Qwen3-Omni, thinker": 968,
    "Qwen2.5-Omni, talker": 390,
    "Qwen2.5-Omni, thinker": 372,
    "Qwen3-TTS, talker": 1214,
}
"""Launches of a step; bounds that only fall."""


def spec(*shape: int, dtype: torch.dtype = BF16) -> Spec:
    return Spec.of(torch.empty(shape, dtype=dtype, device="meta"))


HEADS = spec(ROWS, 20, 128), spec(20, 128), spec(1000, 1, 2, 128)
CALLS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "add_norm": (kernels.add_norm, (spec(ROWS, 1024), spec(ROWS, 1024), spec(1024), 1e-6)),
    "turn_heads": (
        kernels.turn_heads,
        (
            *HEADS,
            spec(ROWS, dtype=torch.int64),
            spec(20, 1, dtype=torch.bool),
            1e-6,
        ),
    ),
    "turned": (
        kernels.turned,
        (
            spec(2, ROWS, 32, 128),
            spec(32, 128),
            spec(2, 1, 1, 2, 128),
            spec(32, 1, dtype=torch.bool),
            1e-6,
        ),
    ),
    "gate": (kernels.gate, (spec(ROWS, 6144),)),
    "take_rows": (kernels.take_rows, (spec(ROWS, 1024), spec(ROWS * 6, dtype=torch.int64), 6)),
    "mix_experts": (
        kernels.mix_experts,
        (spec(ROWS, 6, 1024), spec(ROWS, 6), spec(ROWS, 1024), spec(ROWS, 1), True),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_one_kernel_is_generated(name: str) -> None:
    function, arguments = CALLS[name]
    made = generated_for_cuda(function, arguments)
    assert (made.kernels, made.library) == (1, 0), made.source


def test_kernels_of_libraries_and_kernels_that_do_not_fuse_are_counted() -> None:
    def parts(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (rows.softmax(-1) @ weight).softmax(-1)

    made = generated_for_cuda(parts, (spec(ROWS, 64), spec(64, 64)))
    assert (made.kernels, made.library) == (2, 1), made.source


@pytest.mark.parametrize(("name", "most"), MOST.items())
def test_steps_launch_few_kernels_and_wait_for_nothing(name: str, most: int) -> None:
    counted = count(name, 1, fused=True, lowered=True, steps=2)
    assert most / 2 < max(counted.launches) <= most
    assert counted.waits == 0


def test_launches_do_not_depend_on_the_position() -> None:
    counted = count("Qwen2.5-Omni, talker", 1, fused=True, lowered=True)
    assert len(counted.launches) == 64
    assert len(set(counted.launches)) == 1


def test_what_is_one_kernel_counts_once() -> None:
    rows = torch.zeros(4, 8, device="meta")
    with launches_on_meta() as launches:
        with launches.one_kernel():
            torch.nn.functional.rms_norm(rows + 1, (8,)) * 2
        rows + 1
    assert launches.total == 2
