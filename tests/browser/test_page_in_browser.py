from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from antiphon_gateway.keys.key_file import digest_of
from antiphon_tools.demo.script import SPOKEN
from tests.browser.cut_connection import cut_connection
from tests.browser.in_browser import browser_page
from tests.browser.lone_gateway import keys_file, lone_gateway
from tests.embedded_model import embedded_model

pytestmark = pytest.mark.processes

QUESTION = "What is antiphon?"
ANSWER = "Antiphon serves speech models as small services."
SIZES = [(1280, 800), (820, 1180), (390, 844), (320, 640)]
HEARD_MS = 200
# Marks the page once that much of an item has been played.
MARK_SOUND = f"""
const Node = AudioWorkletNode;
globalThis.AudioWorkletNode = class extends Node {{
  constructor(context, name, options) {{
    super(context, name, options);
    if (name !== "player") return;
    this.port.addEventListener("message", ({{ data }}) => {{
      if (data.played > {HEARD_MS} * 24) document.documentElement.dataset.sounding = data.item;
    }});
  }}
}};
"""
# The browser's own words for a connection that was not opened, and for a status such as 401.
REFUSED = ("WebSocket connection to", "Failed to load resource")


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_what_is_typed_is_answered_and_spoken(page: Page) -> None:
    ask(page, QUESTION)
    # It can be interrupted while it is made, and while the loudspeaker has something of it.
    interrupt = page.get_by_role("button", name="Interrupt")
    expect(interrupt).to_be_enabled()
    turns = page.get_by_role("list", name="Conversation").get_by_role("listitem")
    expect(turns).to_have_count(2)
    expect(turns.nth(0)).to_contain_text(QUESTION)
    expect(turns.nth(1)).to_contain_text(ANSWER)
    timeline = turns.nth(1).get_by_role("table")
    expect(timeline.get_by_role("rowheader")).to_have_text(["thinker", "talker", "code2wav"])
    expect(interrupt).to_be_disabled()
    expect(page.get_by_role("status")).to_have_text("Ready.")


def test_an_interrupted_answer_falls_silent_and_the_next_is_given(page: Page) -> None:
    ask(page, QUESTION)
    interrupt = page.get_by_role("button", name="Interrupt")
    expect(interrupt).to_be_enabled()
    interrupt.click()
    expect(interrupt).to_be_disabled()
    ask(page, "What is the weather like?")
    answers = page.locator("#turns li.answer")
    expect(answers).to_have_count(2)
    expect(answers.nth(1)).not_to_have_text("antiphon")
    expect(page.get_by_role("status")).to_have_text("Ready.")


def test_interrupting_audible_speech_stops_it_once(served: str) -> None:
    sent: list[dict[str, object]] = []
    with browser_page(served, script=MARK_SOUND) as page:
        interrupt = page.get_by_role("button", name="Interrupt")
        page.on(
            "websocket",
            lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))),
        )
        page.get_by_role("button", name="Connect again").click()
        expect(page.get_by_role("status")).to_have_text("Connected.")
        ask(page, QUESTION)
        expect(page.locator("html")).to_have_attribute("data-sounding", re.compile("."))
        interrupt.click()
        expect(interrupt).to_be_disabled()
        ask(page, "What is the weather like?")
        expect(page.locator("#turns li.answer").nth(1)).to_contain_text("weather")
        expect(interrupt).to_be_disabled()
    truncated = [each for each in sent if each["type"] == "conversation.item.truncate"]
    assert [each["audio_end_ms"] >= HEARD_MS for each in truncated] == [True]


def test_newest_turn_stays_in_view_over_ten_turns(served: str) -> None:
    with browser_page(served) as page:
        page.get_by_label("Answer", exact=True).select_option("text")
        tables = page.get_by_role("table")
        for turn in range(10):
            ask(page, QUESTION)
            expect(tables).to_have_count(turn + 1)
            expect(tables.nth(turn)).to_be_in_viewport(ratio=1)
        for width, height in SIZES:
            page.set_viewport_size({"width": width, "height": height})
            expect(tables.nth(9)).to_be_in_viewport(ratio=1)
            assert page.evaluate("document.documentElement.scrollWidth") == width
        # A reader who has scrolled back is left there.
        page.locator("main").evaluate("each => each.scrollTo(0, 0)")
        first = page.locator("#turns li").nth(0)
        expect(first).to_be_in_viewport()
        page.locator("#turns").evaluate("each => each.append(document.createElement('li'))")
        expect(first).to_be_in_viewport()


def test_refused_page_says_why_when_the_gateway_has_keys(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, digest_of("antiphon-right"))
    with lone_gateway(tmp_path, keys_file=keys) as url:
        needed = "This gateway needs an API key."
        with browser_page(url, status=needed, expected_errors=REFUSED) as page:
            status = page.get_by_role("status")
            key = page.get_by_label("API key")
            expect(key).to_be_focused()
            key.fill("antiphon-wrong")
            key.press("Enter")
            expect(status).to_have_text("The API key was rejected.")
            key.fill("antiphon-right")
            key.press("Enter")
            expect(status).to_have_text("The model is still loading …")


def test_conversation_goes_on_when_the_gateway_of_make_up_is_killed() -> None:
    with (
        embedded_model() as model,
        browser_page(model.url, expected_errors=REFUSED) as page,
    ):
        ask(page, QUESTION)
        tables = page.get_by_role("table")
        expect(tables).to_have_count(1)
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
        os.kill(model.gateway_pid, signal.SIGKILL)
        expect(page.get_by_role("status")).to_have_text("Connected again.")
        ask(page, QUESTION)
        expect(tables).to_have_count(2)
        expect(page.locator("#turns li.answer").nth(1)).to_contain_text(ANSWER)


def test_what_is_said_is_heard_to_its_end_and_interrupts(served: str, recording: Path) -> None:
    heard = f"--use-file-for-fake-audio-capture={recording}%noloop"
    with browser_page(served, heard) as page:
        ask(page, QUESTION)
        expect(page.get_by_role("button", name="Interrupt")).to_be_enabled()
        page.get_by_role("button", name="Talk").click()
        turns = page.get_by_role("list", name="Conversation").get_by_role("listitem")
        expect(turns.nth(2)).to_contain_text("You")
        expect(turns).to_have_count(4)
        expect(turns.nth(3).get_by_role("table")).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("Ready.")
        page.get_by_role("button", name="Talk").click()
        expect(page.get_by_role("button", name="Talk")).to_have_attribute("aria-pressed", "false")


def test_what_is_said_is_shown_in_words(served: str) -> None:
    heard = f"--use-file-for-fake-audio-capture={SPOKEN}%noloop"
    with browser_page(served, heard) as page:
        page.get_by_role("button", name="Talk").click()
        turns = page.get_by_role("list", name="Conversation").get_by_role("listitem")
        expect(turns.nth(0)).to_contain_text("You")
        # Which words depends on what the browser's microphone loses on a busy machine.
        expect(turns.nth(0)).not_to_contain_text("(spoken)")


def test_suggestion_is_asked(page: Page) -> None:
    prompts = page.get_by_role("list", name="Suggestions").get_by_role("button")
    assert QUESTION in prompts.all_inner_texts()
    prompts.get_by_text(QUESTION).click()
    turns = page.get_by_role("list", name="Conversation").get_by_role("listitem")
    expect(turns.nth(0)).to_contain_text(QUESTION)
    expect(turns.nth(1)).to_contain_text(ANSWER)


@pytest.mark.parametrize("size", SIZES)
def test_suggestions_fit_the_window(page: Page, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0], "height": size[1]})
    row = page.get_by_role("list", name="Suggestions")
    expect(row.get_by_role("button").first).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert row.evaluate("each => each.clientHeight < 48")


def test_answers_come_as_text_where_that_is_chosen(page: Page) -> None:
    page.get_by_label("Answer", exact=True).select_option("text")
    expect(page.get_by_role("status")).to_have_text("Connected.")
    ask(page, QUESTION)
    expect(page.locator("#turns li.answer")).to_contain_text(ANSWER)
    expect(page.get_by_role("status")).to_have_text("Ready.")
    expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()


def test_a_conversation_goes_on_when_its_connection_is_lost(served: str) -> None:
    sent: list[str] = []
    with cut_connection(served) as connection, browser_page(connection.url) as page:
        status = page.get_by_role("status")
        answers = page.locator("#turns li.answer")
        page.on(
            "websocket",
            lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))),
        )
        ask(page, QUESTION)
        expect(answers.nth(0)).to_contain_text(ANSWER)
        expect(status).to_have_text("Ready.")
        # The answer has been heard, and the page has the token that has it.
        interrupt = page.get_by_role("button", name="Interrupt")
        expect(interrupt).to_be_disabled()
        connection.cut()
        expect(status).to_have_text("Connected again.")
        ask(page, QUESTION)
        expect(interrupt).to_be_enabled()
        # While an answer is made: it ends as it was heard.
        connection.cut()
        expect(status).to_have_text("The answer is failed.")
        ask(page, QUESTION)
        expect(answers).to_have_count(3)
        expect(answers.nth(2)).to_contain_text(ANSWER)
        expect(status).to_have_text("Ready.")
    commands = [json.loads(each)["type"] for each in sent]
    assert commands.count("antiphon.conversation.resume") == 2
    # What the gateway has carried out is not sent again.
    assert commands.count("conversation.item.create") == 2


# Sends as many next connections as `refused` says to a path that refuses them.
REFUSE_SOME = """
globalThis.refused = 0;
const Socket = WebSocket;
globalThis.WebSocket = class extends Socket {
  constructor(url, protocols) {
    const elsewhere = new URL(url);
    if (globalThis.refused-- > 0) elsewhere.pathname = "/nothing";
    super(elsewhere, protocols);
  }
};
"""


def test_a_conversation_goes_on_when_its_gateway_is_ready_after_it_refused(served: str) -> None:
    """One that starts may be ready between its refusal and the page's look for the reason."""
    with (
        cut_connection(served) as connection,
        browser_page(connection.url, script=REFUSE_SOME, expected_errors=REFUSED) as page,
    ):
        ask(page, QUESTION)
        expect(page.get_by_role("status")).to_have_text("Ready.")
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
        page.evaluate("globalThis.refused = 2")
        connection.cut()
        expect(page.get_by_role("status")).to_have_text("Connected again.")


def test_every_control_is_reached_and_named(page: Page) -> None:
    names = ["Message", "Send", "Talk", "Voice", "Answer", "API key", "Connect again"]
    page.get_by_label("Message").focus()
    reached = []
    for _ in names:
        focused = page.locator(":focus")
        labels = focused.evaluate("each => [...(each.labels ?? [])].map(l => l.textContent)")
        reached.append(labels[0] if labels else focused.inner_text())
        page.keyboard.press("Tab")
    assert reached == names
