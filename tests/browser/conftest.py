"""A real browser before the page of real services. `make test-browser` installs what it needs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.browser.in_browser import browser_page

if TYPE_CHECKING:
    from playwright.sync_api import Page


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave these tests out of a run that does not ask for them."""
    return None if config.getoption("--browser") else True


@pytest.fixture
def page(served: str) -> Iterator[Page]:
    """The page in a browser whose microphone beeps."""
    with browser_page(served) as opened:
        yield opened
