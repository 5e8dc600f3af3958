"""Requests that are sent from the reference page."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from antiphon_gateway.keys.key_file import digest_of
from antiphon_tools.demo.script import SPOKEN
from tests.browser.in_browser import browser_page
from tests.browser.lone_gateway import keys_file, lone_gateway

pytestmark = pytest.mark.processes

ANSWER = "Antiphon serves speech models as small services."
CHAT = "POST /v1/chat/completions"
MODELS = "GET /v1/models"
# The browser's own words for a status such as 401, and for a connection that was not opened.
REFUSED = ("Failed to load resource", "WebSocket connection to")
SECONDS = (
    "each => new Promise((done) => each.readyState ? done(each.duration)"
    " : each.addEventListener('loadedmetadata', () => done(each.duration)))"
)


def endpoint(page: Page, name: str) -> Locator:
    """The section of an endpoint, whose form is opened."""
    heading = page.get_by_role("heading", name=name, exact=True)
    section = page.locator("section").filter(has=heading)
    section.get_by_text("Try it").click()
    return section


def send(section: Locator) -> Locator:
    """Its status."""
    section.get_by_role("button", name="Send").click()
    return section.get_by_role("status")


@pytest.fixture
def reference(page: Page, served: str) -> Page:
    with page.expect_response("**/v1/models"):
        page.goto(f"{served}/docs")
    return page


def test_answer_is_shown_and_heard(reference: Page) -> None:
    chat = endpoint(reference, CHAT)
    body, player = chat.get_by_label("Body"), chat.locator("audio")
    shown = chat.locator(".response pre")
    expect(body).to_have_value(re.compile('"model": "antiphon-demo"'))
    expect(send(chat)).to_contain_text("200 OK after")
    expect(shown).to_contain_text(ANSWER)
    assert player.evaluate(SECONDS) > 1
    # The next answer takes its place.
    asked = json.loads(body.input_value())
    body.fill(json.dumps({**asked, "modalities": ["text"], "audio": None, "stream": True}))
    expect(send(chat)).to_contain_text("200 OK after")
    expect(shown).to_have_count(1)
    expect(shown).to_contain_text("data: [DONE]")
    expect(player).to_have_count(0)


def test_file_is_sent(reference: Page) -> None:
    transcriptions = endpoint(reference, "POST /v1/audio/transcriptions")
    expect(transcriptions.get_by_label("model")).to_have_value("antiphon-demo")
    transcriptions.get_by_label("file").set_input_files(SPOKEN)
    expect(send(transcriptions)).to_contain_text("200 OK after")
    expect(transcriptions.locator(".response pre")).to_contain_text("What are the stages?")


def test_parameters_are_sent(reference: Page) -> None:
    expect(send(endpoint(reference, "GET /v1/models/{name}"))).to_contain_text("200 OK after")
    health = endpoint(reference, "GET /health")
    health.get_by_label("output").select_option("text")
    with reference.expect_request("**/health?output=text"):
        expect(send(health)).to_contain_text("200 OK after")


def test_refusal_says_why(served: str) -> None:
    with browser_page(served, expected_errors=REFUSED) as page:
        page.goto(f"{served}/docs")
        chat = endpoint(page, CHAT)
        chat.get_by_label("Body").fill("{")
        expect(send(chat)).to_contain_text("The body is not JSON")
        chat.get_by_label("Body").fill("{}")
        expect(send(chat)).to_contain_text("400 Bad Request after")
        expect(chat.locator(".response pre")).to_contain_text("model")


def test_request_is_stopped(reference: Page) -> None:
    chat = endpoint(reference, CHAT)
    held: list[Route] = []
    reference.route("**/v1/chat/completions", lambda route: held.append(route))
    status = send(chat)
    expect(status).to_have_text("Waiting …")
    expect(chat.get_by_role("button", name="Send")).to_be_disabled()
    chat.get_by_role("button", name="Stop").click()
    expect(status).to_have_text("Stopped.")
    expect(chat.get_by_role("button", name="Send")).to_be_enabled()


def test_key_is_sent_and_kept_until_the_tab_is_closed(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, digest_of("antiphon-right"))
    with lone_gateway(tmp_path, keys_file=keys) as url:
        needed = "This gateway requires an API key."
        with browser_page(url, status=needed, expected_errors=REFUSED) as page:
            page.goto(f"{url}/docs")
            expect(send(endpoint(page, MODELS))).to_contain_text("401 Unauthorized after")
            key = page.get_by_label("API key")
            key.fill("antiphon-right")
            key.press("Tab")
            page.reload()
            # The stages of this gateway are not there.
            expect(send(endpoint(page, MODELS))).to_contain_text("503 Service Unavailable after")
            page.goto(url)
            expect(page.get_by_role("status")).to_have_text("The model is still loading …")


def test_page_is_as_wide_as_the_window(reference: Page) -> None:
    send(endpoint(reference, CHAT))
    for section in ("POST /v1/audio/transcriptions", "GET /health"):
        endpoint(reference, section)
    expect(reference.locator("audio")).to_be_visible()
    for width in (1280, 820, 390, 320):
        reference.set_viewport_size({"width": width, "height": 700})
        assert reference.evaluate("document.documentElement.scrollWidth") == width
