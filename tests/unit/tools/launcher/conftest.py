"""A checkout of fake services."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.tools.launcher.fake_services import Checkout, make_checkout


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return make_checkout(tmp_path)
