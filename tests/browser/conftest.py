"""A real browser before the page of real services. `make test-browser` installs what it needs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).parents[2]
START_S = 240


def pytest_ignore_collect(config: pytest.Config) -> bool | None:
    """Leave these tests out of a run that does not ask for them."""
    return None if config.getoption("--browser") else True


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The URL of a gateway before the embedded model."""
    command = [sys.executable, "-m", "tools.launcher", "up", "--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "  gRPC  " not in said:
                line = process.stdout.readline()
                assert line, said
                said += line
            (url,) = re.findall(r"HTTP  (\S+)", said)
            yield url
            process.send_signal(signal.SIGINT)
            said = process.stdout.read()
            assert process.wait(START_S) == 0, said
        finally:
            process.kill()


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
