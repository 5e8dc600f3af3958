"""`python -m antiphon_gateway`: what its command line does and how it ends."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from antiphon_gateway.__main__ import main


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gateway", *arguments])
    return main()


def test_key_is_made(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "keys", "new", "app", "--concurrency", "4") == 0
    printed = capsys.readouterr().out
    assert '"name":"app"' in printed
    assert '"concurrency":4' in printed


def test_name_that_will_not_do_is_an_error_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "keys", "new", "two words") == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("gateway: ")
    assert "name" in printed.err
    assert not printed.out


def test_deployment_that_will_not_do_is_an_error_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text("gateway: {queue: {max_calls: 0}}\n")
    assert run(monkeypatch, "--config", str(file)) == 2
    assert "max_calls" in capsys.readouterr().err
