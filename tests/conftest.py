"""What the command line chooses for tests of more than one folder."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--thinker-engine`: what the thinker runs on where real services are started."""
    parser.addoption("--thinker-engine", choices=("torch", "vllm"), default="torch")
