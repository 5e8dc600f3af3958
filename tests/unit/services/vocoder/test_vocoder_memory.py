"""What code2wav holds, and what its first calls cost, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

from antiphon_tools.launcher.plan import application_root, import_path

PROGRAM = Path(__file__).parent / "measured_vocoder.py"
DEMO = "models/antiphon-demo"
# 4 MB; a first call without a warm-up takes 37 MB.
FEW_FAULTS = 1000
# Operations for the shapes of several sessions, and the gaps between them, take 36 to 59 MB.
MOST_GROWTH_MB = 80
MOST_OF_SHAPES_MB = 250
STEADY = 1.05


class Load(NamedTuple):
    """So many sessions at once: page faults of the engine's thread, and MB after them."""

    sessions: int
    faults: int
    resident_mb: float


class Measured(NamedTuple):
    """MB once the stage was ready, its loads in their order, and MB after each mixed load."""

    ready_mb: float
    loads: list[Load]
    mixed_mb: list[float]


@pytest.fixture(scope="module")
def measured() -> Measured:
    root = application_root()
    done = subprocess.run(
        [sys.executable, str(PROGRAM), str(root / DEMO)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={**os.environ, "PYTHONPATH": import_path(root)},
    )
    if "not glibc" in done.stderr:
        pytest.skip("this malloc is not glibc's")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    return Measured(told["ready_mb"], [Load(*each) for each in told["loads"]], told["mixed_mb"])


def test_the_first_call_after_ready_takes_no_new_memory(measured: Measured) -> None:
    for first in measured.loads[:2]:
        assert first.sessions == 1
        assert first.faults < FEW_FAULTS


def test_memory_grows_little_when_sessions_share_calls(measured: Measured) -> None:
    for load in measured.loads:
        assert load.resident_mb < measured.ready_mb + MOST_GROWTH_MB, load


def test_memory_of_many_shapes_is_bounded(measured: Measured) -> None:
    """oneDNN keeps what it has compiled for a shape, of 1,024 operations."""
    assert max(measured.mixed_mb) < measured.ready_mb + MOST_OF_SHAPES_MB
    *_, before, last = measured.mixed_mb
    assert last < STEADY * before


def test_a_load_that_comes_again_takes_no_new_memory(measured: Measured) -> None:
    """The heap may need a repetition to settle; what every load costs shows in all of them."""
    repeated = [
        load for before, load in pairwise(measured.loads) if load.sessions == before.sessions > 1
    ]
    assert min(load.faults for load in repeated) < FEW_FAULTS, repeated
