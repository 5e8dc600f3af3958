"""A command that may be the first process of a container."""

from __future__ import annotations

import pytest

from antiphon_tools import command
from antiphon_tools.command import Command


def test_serve_forks_as_the_first_process_before_its_imports(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events = []

    def load(_: Command) -> object:
        events.append("import")
        return lambda arguments, *, prog: 7

    monkeypatch.setattr(command, "fork_if_first", lambda signals: events.append("fork"))
    monkeypatch.setattr(Command, "load", load)
    assert command.main(["serve", "model"]) == 7
    assert events == ["fork", "import"]
    assert command.main(["load"]) == 7
    assert events == ["fork", "import", "import"]
