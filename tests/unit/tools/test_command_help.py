"""The help of the commands that a new user meets fits a screen."""

from __future__ import annotations

import pytest

from antiphon_tools.command import COMMANDS, usage

LINES, COLUMNS = 24, 80
LONGER = {"chaos", "load", "verify"}
"""Commands with options for experts, whose help is longer."""


def assert_fits(text: str) -> None:
    lines = text.splitlines()
    assert len(lines) <= LINES, text
    assert max(map(len, lines)) <= COLUMNS, text


def test_the_list_of_commands_fits_a_screen() -> None:
    assert_fits(usage())


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - LONGER - {"stage"}))
def test_help_fits_a_screen(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    with pytest.raises(SystemExit, match=r"^0$"):
        COMMANDS[name].load()(["--help"], prog=f"antiphon {name}")
    shown = capsys.readouterr().out
    assert shown.startswith(f"usage: antiphon {name} ")
    assert_fits(shown)


def test_help_of_a_stage_fits_a_screen(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command itself would import torch.
    from antiphon.runtime.server.main import _parser

    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    assert_fits(_parser("antiphon stage").format_help())
