"""A real browser before the page of real services. `make test-browser` installs what it needs."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave these tests out of a run that does not ask for them."""
    return None if config.getoption("--browser") else True


@contextmanager
def browser_page(url: str, *arguments: str) -> Iterator[Page]:
    """The page, connected; afterwards nothing may have been wrong with it."""
    from playwright.sync_api import expect, sync_playwright

    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    assert program, (
        "chromium is not installed (Debian: apt-get install chromium), nor $CHROMIUM set"
    )
    flags = ["--no-sandbox", "--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream"]
    wrong: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=[*flags, *arguments])
        page = browser.new_page(viewport={"width": 1000, "height": 800})
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on(
            "console",
            lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None,
        )
        expect.set_options(timeout=60_000)
        page.goto(url)
        expect(page.get_by_role("status")).to_have_text("Connected.")
        yield page
        browser.close()
    assert not wrong


@pytest.fixture
def page(served: str) -> Iterator[Page]:
    """The page in a browser whose microphone beeps."""
    with browser_page(served) as opened:
        yield opened
