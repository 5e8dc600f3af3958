from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from antiphon_testkit.graph_watch import GraphWatch


def write_by_mask(rows: Tensor) -> object:
    rows[rows > 0] = torch.ones(3)
    return rows


def write_by_scattering(rows: Tensor) -> object:
    return rows.masked_scatter_(rows > 0, torch.ones(3))


UNFIT: dict[str, Callable[[Tensor], object]] = {
    "item": lambda rows: rows[0].item(),
    "branch": lambda rows: bool(rows[0] > 0),
    "tolist": lambda rows: rows.tolist(),
    "cpu": lambda rows: rows.cpu(),
    "numpy": lambda rows: rows.numpy(),
    "array": lambda rows: rows.__array__(),
    "from the host": lambda rows: rows + torch.tensor([1.0, 2.0, 3.0]),
    "multinomial": lambda rows: rows.softmax(-1).multinomial(1),
    "nonzero": lambda rows: rows.nonzero(),
    "read by mask": lambda rows: rows[rows > 0],
    "unique": lambda rows: rows.unique(),
    "write by mask": write_by_mask,
    "write by scattering": write_by_scattering,
}
FIT: dict[str, Callable[[Tensor], object]] = {
    "where": lambda rows: torch.where(rows > 0, rows, 0.0),
    "masked fill": lambda rows: rows.masked_fill(rows > 0, 0.0),
    "argmax": lambda rows: rows.softmax(-1).argmax(-1),
    "by places": lambda rows: rows[rows.argsort()],
}


@pytest.mark.parametrize("name", UNFIT)
@torch.no_grad()
def test_operation_is_found_when_no_graph_may_hold_it(name: str) -> None:
    watch, rows = GraphWatch(), torch.ones(3)
    with watch:
        UNFIT[name](rows)
    assert watch.unfit


@pytest.mark.parametrize("name", FIT)
@torch.no_grad()
def test_operation_is_no_fault_when_a_graph_may_hold_it(name: str) -> None:
    watch, rows = GraphWatch(), torch.ones(3)
    with watch:
        FIT[name](rows)
    assert watch.seen > 0
    assert watch.unfit == []


@torch.no_grad()
def test_reads_are_not_noted_when_the_watch_has_ended() -> None:
    watch, rows = GraphWatch(), torch.ones(3)
    for _ in range(2):
        with watch:
            rows.add(1)
    rows.tolist()
    assert watch.unfit == []
