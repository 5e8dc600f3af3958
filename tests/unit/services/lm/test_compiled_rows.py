"""Whether what cannot be one graph is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from tests.compiled_rows import CompiledRows

ROWS = torch.arange(4.0)


def asks(rows: Tensor) -> tuple[Tensor]:
    return (rows * int(rows.sum().item()),)


def branches(rows: Tensor) -> tuple[Tensor]:
    return (rows * 2 if rows.sum() > 0 else rows,)


def finds(rows: Tensor) -> tuple[Tensor]:
    return (rows[rows > 1],)


@pytest.mark.parametrize("function", [asks, branches, finds])
def test_what_waits_for_a_value_is_refused(function: Callable[[Tensor], tuple[Tensor]]) -> None:
    compiled = CompiledRows()
    with pytest.raises(TorchDynamoException):
        compiled(function, [torch.zeros(4)], 4)(ROWS)
    assert not compiled.graphs


def test_graph_for_each_number_of_rows_gives_what_the_function_gives() -> None:
    compiled = CompiledRows()
    run = compiled(lambda rows: (rows * 2 + 1,), [torch.zeros(4)], 2)
    assert run(ROWS)[0].tolist() == [1, 3, 5, 7]
    assert run(ROWS[:2])[0].tolist() == [1, 3]
    assert run(ROWS[:1])[0].tolist() == [1]
    assert compiled.graphs == 2
