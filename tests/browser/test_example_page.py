"""The example of a page, from a server of files as its page says."""

from __future__ import annotations

import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import expect

from antiphon_tools.demo.script import SPOKEN
from tests.browser.in_browser import browser_page
from tests.embedded_model import ROOT, embedded_model

pytestmark = pytest.mark.processes

EXAMPLES = ROOT / "examples"


def test_example_page_converses() -> None:
    files = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=EXAMPLES)
    )
    threading.Thread(target=files.serve_forever).start()
    url = f"http://127.0.0.1:{files.server_port}/realtime.html"
    heard = f"--use-file-for-fake-audio-capture={SPOKEN}%noloop"
    # Browsers ask for an icon, of which there is none.
    missing = ("Failed to load resource",)
    try:
        with (
            embedded_model("--config", str(EXAMPLES / "realtime.yaml")) as model,
            browser_page(url, heard, status="Press Talk.", expected_errors=missing) as page,
        ):
            address = f"{model.url.replace('http', 'ws', 1)}/v1/realtime"
            page.get_by_label("Server").fill(address)
            page.get_by_role("button", name="Talk").click()
            expect(page.get_by_role("status")).to_have_text("Speak.")
            turns = page.get_by_role("listitem")
            # Which words depends on what the browser's microphone loses on a busy machine.
            expect(turns.filter(has_text="You: ")).to_have_count(1)
            expect(turns.filter(has_text="Model: ")).to_contain_text(".")
    finally:
        files.shutdown()
        files.server_close()
