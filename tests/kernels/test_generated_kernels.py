"""What Inductor generates for a GPU: one kernel for each function, at the released widths."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from antiphon.testing.launches import launches_on_meta
from benchmarks.operations.__main__ import count
from benchmarks.operations.generated import Spec, generated_for_cuda
from services.lm import kernels

BF16, ROWS = torch.bfloat16, 8


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


def test_talker_frame_launches_as_few() -> None:
    launches, waits, _ = count("Qwen3-Omni, talker", 16, fused=True, lowered=True)
    assert 500 < launches <= 1270
    assert waits == 0


def test_what_is_one_kernel_counts_once() -> None:
    rows = torch.zeros(4, 8, device="meta")
    with launches_on_meta() as launches:
        with launches.one_kernel():
            torch.nn.functional.rms_norm(rows + 1, (8,)) * 2
        rows + 1
    assert launches.total == 2
