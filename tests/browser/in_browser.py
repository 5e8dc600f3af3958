"""The page in a real browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


CONNECTED = "Connected."


def choose(page: Page, label: str, value: str) -> None:
    """Set a choice in the settings pane, which is closed before and after."""
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label(label, exact=True).select_option(value)
    page.get_by_role("button", name="Close settings").click()


def connect_again(page: Page) -> None:
    """Begin another conversation with the same settings."""
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Connect again").click()
    page.get_by_role("button", name="Close settings").click()


@contextmanager
def browser_page(
    url: str,
    *arguments: str,
    script: str = "",
    status: str = CONNECTED,
    expected_errors: tuple[str, ...] = (),
) -> Iterator[Page]:
    """The page, once it shows `status`.

    `script` runs before the page's own. Afterwards the console may have no error or warning, except
    lines that contain one of `expected_errors`.
    """
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
        if script:
            page.add_init_script(script)
        expect.set_options(timeout=60_000)
        page.goto(url)
        expect(page.get_by_role("status")).to_have_text(status)
        yield page
        browser.close()
    assert [each for each in wrong if not any(text in each for text in expected_errors)] == []
