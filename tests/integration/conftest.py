"""Tiny checkpoints for the tests that run the real services."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.testing.tiny_checkpoint import TinyShape, build_tiny_checkpoint


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The default tiny checkpoint."""
    directory = tmp_path_factory.mktemp("tiny") / "tiny"
    build_tiny_checkpoint(directory)
    return directory


@pytest.fixture(scope="session")
def talkative(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint that speaks until its limit: the end of speech is never drawn."""
    directory = tmp_path_factory.mktemp("talkative") / "talkative"
    build_tiny_checkpoint(directory, TinyShape(endless_speech=True))
    return directory
