"""The demonstration's recording, tables and failures."""

from __future__ import annotations

import io
import wave
from itertools import pairwise
from pathlib import Path

import pytest

import antiphon
from antiphon.demo.__main__ import main
from antiphon.demo.measure import Measured
from antiphon.demo.sweep import SAMPLE_RATE_HZ, SECONDS, sweep_wav
from antiphon.demo.tables import BAR_WIDTH, WAITING, WORKING, results_table, timeline


def test_sweep_is_a_recording_that_rises_when_read_back() -> None:
    with wave.open(io.BytesIO(sweep_wav())) as file:
        assert (file.getnchannels(), file.getsampwidth()) == (1, 2)
        assert file.getnframes() == SECONDS * SAMPLE_RATE_HZ
        samples = memoryview(file.readframes(file.getnframes())).cast("h")
    half = len(samples) // 2
    assert 0 < _sign_changes(samples[:half]) < _sign_changes(samples[half:])


def _sign_changes(samples: memoryview[int]) -> int:
    return sum(a * b < 0 for a, b in pairwise(samples))


def test_timeline_bars_share_one_scale_when_stages_overlap() -> None:
    reports = {
        "code2wav": antiphon.StageReport(0, 0, 1.0, 2.0, 4.0, 0.5),
        "thinker": antiphon.StageReport(0, 0, 0.0, 1.0, 2.0, 0.5),
    }
    _, thinker, code2wav = timeline(reports, ("thinker", "talker", "code2wav"))
    quarter = BAR_WIDTH // 4
    assert thinker.endswith("0.50 s  " + WAITING * quarter + WORKING * quarter)
    assert code2wav.endswith("0.50 s  " + " " * quarter + WAITING * quarter + WORKING * 2 * quarter)


def test_timeline_has_a_header_only_when_no_stage_reported() -> None:
    assert len(list(timeline({}, ("thinker",)))) == 1


def test_results_table_leaves_out_audio_figures_when_there_was_no_audio() -> None:
    stop, usage = antiphon.FinishReason.STOP, antiphon.Usage()
    silent = antiphon.Reply("Hi", b"", 0, stop, usage, {})
    spoken = antiphon.Reply("Hi", b"\0" * 4 * 24000, 24000, stop, usage, {})
    _, first, second = results_table(
        {"a": Measured(silent, 0.5, None, 1.0), "b": Measured(spoken, 0.5, 0.75, 1.0)}
    )
    assert " ".join(first.split()) == "a 0.50 s - - 1.00 s - stop"
    assert " ".join(second.split()) == "b 0.50 s 0.75 s 2.00 s 1.00 s 0.50 stop"


def test_demo_fails_with_the_reason_when_the_model_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert "error: no checkpoint in" in capsys.readouterr().err
