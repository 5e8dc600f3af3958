from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from antiphon_tools.hub.settings import HubSettings
from tests.loopback_hub import LoopbackHub, loopback_hub
from tests.unit.tools.hub.made_repository import MODEL, write_repository


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LoopbackHub]:
    with loopback_hub({MODEL: write_repository(tmp_path / "repository")}) as running:
        yield running


@pytest.fixture
def shown() -> io.StringIO:
    """What a download shows."""
    return io.StringIO()


@pytest.fixture
def settings(hub: LoopbackHub, tmp_path: Path, shown: io.StringIO) -> HubSettings:
    return HubSettings(cache=tmp_path / "cache", endpoint=hub.url, stream=shown)


@pytest.fixture
def files_of() -> Callable[[Path], set[str]]:
    """The files in a directory, as paths from it."""

    def listed(folder: Path) -> set[str]:
        return {each.relative_to(folder).as_posix() for each in folder.rglob("*") if each.is_file()}

    return listed


@pytest.fixture(autouse=True)
def no_token_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
