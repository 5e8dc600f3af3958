"""The demonstration, whole: a tiny checkpoint, real services, real requests."""

from __future__ import annotations

import subprocess
import sys
import wave
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.processes
def test_demo_speaks_and_leaves_nothing_running_when_it_ends(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "antiphon.demo", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "nothing is left running" in result.stdout
    assert result.stdout.count("exited with status 0") == 4
    for name in ("text-to-speech.wav", "speech-to-speech.wav"):
        with wave.open(str(tmp_path / name)) as file:
            assert file.getnframes() > 0
