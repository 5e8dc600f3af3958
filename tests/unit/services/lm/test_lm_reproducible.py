"""A row's product has the same digits however many rows there are, from `LEAST_ROWS` on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.reproducible import SETTING, ask_for_equal_digits

MOST_ROWS = 48


@pytest.mark.parametrize(("inputs", "outputs"), [(64, 64), (128, 64), (1024, 1024), (1024, 3072)])
def test_rows_have_the_same_digits_in_any_company(inputs: int, outputs: int) -> None:
    torch.manual_seed(0)
    weight, rows = torch.randn(outputs, inputs), torch.randn(MOST_ROWS, inputs)
    together = torch.nn.functional.linear(rows, weight)
    for count in range(LEAST_ROWS, MOST_ROWS):
        alone = torch.nn.functional.linear(rows[:count], weight)
        assert torch.equal(alone, together[:count]), count


def test_talkers_process_asks_before_torch_is_imported() -> None:
    """Later would be too late; the module that runs it imports no torch before its main."""
    check = "import sys, antiphon_services.__main__; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[4]
    subprocess.run([sys.executable, "-c", check], cwd=root, check=True)


def test_a_mode_that_somebody_has_chosen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SETTING, "COMPATIBLE")
    ask_for_equal_digits()
    assert os.environ[SETTING] == "COMPATIBLE"
