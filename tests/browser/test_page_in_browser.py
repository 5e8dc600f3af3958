from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any, Literal

import pytest
import soundfile
from playwright.sync_api import Page, WebSocketRoute, expect

from antiphon_gateway.keys.key_file import digest_of
from antiphon_tools.demo.script import SPOKEN
from tests.browser.cut_connection import cut_connection
from tests.browser.in_browser import browser_page, choose, connect_again
from tests.browser.lone_gateway import keys_file, lone_gateway
from tests.embedded_model import embedded_model

pytestmark = pytest.mark.processes

QUESTION = "What is antiphon?"
ANSWER = "Antiphon serves speech models as small services."
SIZES = [(1280, 800), (820, 1180), (390, 844), (320, 640)]
HEARD_MS = 200
# Only ends a hang: a gateway that starts on a busy machine has taken a minute.
START_MS = 240_000
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
    turns.nth(1).get_by_text("Stages", exact=True).click()
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


def test_interrupting_an_answer_cancels_it(served: str) -> None:
    """The answer does not end by itself: its end is held until it is cancelled."""
    sent: list[str] = []

    def between(page_side: WebSocketRoute) -> None:
        gateway_side = page_side.connect_to_server()
        held: list[str | bytes] = []

        def told(message: str | bytes) -> None:
            ends = json.loads(message)["type"] == "response.done"
            if ends and "response.cancel" not in sent:
                held.append(message)
            else:
                page_side.send(message)

        def asked(message: str | bytes) -> None:
            sent.append(json.loads(message)["type"])
            gateway_side.send(message)
            if sent[-1] == "response.cancel":
                for each in held:
                    page_side.send(each)
                held.clear()

        gateway_side.on_message(told)
        page_side.on_message(asked)

    with browser_page(served) as page:
        page.route_web_socket(re.compile("/v1/realtime"), between)
        connect_again(page)
        expect(page.get_by_role("status")).to_have_text("Connected.")
        ask(page, QUESTION)
        interrupt = page.get_by_role("button", name="Interrupt")
        expect(page.locator("#turns li.answer")).to_contain_text("Antiphon")
        interrupt.click()
        expect(interrupt).to_be_disabled()
    assert sent.count("response.cancel") == 1


def test_interrupting_audible_speech_stops_it_once(served: str) -> None:
    sent: list[dict[str, object]] = []
    with browser_page(served, script=MARK_SOUND) as page:
        interrupt = page.get_by_role("button", name="Interrupt")
        page.on(
            "websocket",
            lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))),
        )
        connect_again(page)
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
        choose(page, "Answer", "text")
        tables = page.get_by_text("Stages", exact=True)
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


# Notes the protocols that each connection offers, which carry the key.
NOTE_OFFERED = """
globalThis.offered = [];
const Plain = WebSocket;
globalThis.WebSocket = class extends Plain {
  constructor(url, protocols) {
    globalThis.offered.push(protocols);
    super(url, protocols);
  }
};
"""


def test_refused_page_says_why_when_the_gateway_has_keys(tmp_path: Path) -> None:
    keys = keys_file(tmp_path, digest_of("antiphon-right"))
    with lone_gateway(tmp_path, keys_file=keys) as url:
        needed = "This gateway requires an API key."
        with browser_page(url, script=NOTE_OFFERED, status=needed, expected_errors=REFUSED) as page:
            status = page.get_by_role("status")
            key = page.get_by_label("API key")
            expect(key).to_be_focused()
            key.fill("antiphon-wrong")
            key.press("Enter")
            expect(status).to_have_text("The API key was rejected.")
            key.fill("antiphon-right")
            key.press("Enter")
            expect(status).to_have_text("The model is still loading …")
            # The reason is asked for over HTTP; the connection has the key as well.
            protocols = ["realtime", "openai-insecure-api-key.antiphon-right"]
            assert page.evaluate("offered.at(-1)") == protocols
            assert page.evaluate("offered[0]") == []


def test_page_waits_until_all_stages_are_ready(served: str) -> None:
    """A gateway whose first stage is ready takes conversations, and does not know the others."""
    with browser_page(served, expected_errors=REFUSED) as page:
        page.route("**/health", lambda route: route.fulfill(status=503, json={"reason": "loading"}))
        with page.expect_response("**/health"):
            connect_again(page)
        expect(page.get_by_role("status")).to_have_text("The model is still loading …")
        expect(page.get_by_label("Message")).to_be_disabled()
        page.unroute("**/health")
        expect(page.get_by_role("status")).to_have_text("Connected.")
        expect(page.get_by_label("Message")).to_be_enabled()


def test_conversation_goes_on_when_the_gateway_of_make_up_is_killed() -> None:
    with (
        embedded_model() as model,
        browser_page(model.url, expected_errors=REFUSED) as page,
    ):
        ask(page, QUESTION)
        tables = page.get_by_text("Stages", exact=True)
        expect(tables).to_have_count(1)
        expect(page.get_by_role("status")).to_have_text("Ready.")
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
        os.kill(model.gateway_pid, signal.SIGKILL)
        expect(page.get_by_role("status")).to_have_text("Reconnected.", timeout=START_MS)
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
        expect(turns.nth(3).get_by_text("Stages", exact=True)).to_be_visible()
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
    for button in row.get_by_role("button").all():
        expect(button).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    choose(page, "Answer", "text")
    ask(page, QUESTION)
    # One row once there are turns.
    expect(row.get_by_role("button").first).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollWidth") == size[0]
    assert row.evaluate("each => each.clientHeight < 48")


def test_answers_come_as_text_where_that_is_chosen(page: Page) -> None:
    choose(page, "Answer", "text")
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
        expect(status).to_have_text("Reconnected.")
        ask(page, QUESTION)
        expect(interrupt).to_be_enabled()
        # While an answer is made: it ends as it was heard.
        connection.cut()
        expect(status).to_have_text("The answer failed.")
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


# While `loses` is set, the page gets no token after an item has ended, as if the gateway were lost.
LOSE_TOKENS = """
globalThis.loses = false;
let isLost = false;
const Socket = WebSocket;
globalThis.WebSocket = class extends Socket {
  set onmessage(take) {
    super.onmessage = (message) => {
      const { type } = JSON.parse(message.data);
      if (type === "response.output_item.done") isLost = globalThis.loses;
      if (!(isLost && type === "antiphon.conversation.saved")) take(message);
    };
  }
};
"""


def test_an_answer_that_has_ended_stays_whole_when_its_gateway_is_lost(served: str) -> None:
    """The gateway sends the token that includes an answer after the answer's end."""
    sent: list[str] = []
    with (
        cut_connection(served) as connection,
        browser_page(connection.url, script=LOSE_TOKENS) as page,
    ):
        status = page.get_by_role("status")
        answers = page.locator("#turns li.answer")
        page.on(
            "websocket",
            lambda socket: socket.on("framesent", lambda frame: sent.append(str(frame))),
        )
        page.evaluate("globalThis.loses = true")
        ask(page, QUESTION)
        expect(answers.nth(0)).to_contain_text(ANSWER)
        expect(status).to_have_text("Ready.")
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
        page.evaluate("globalThis.loses = false")
        connection.cut()
        expect(status).to_have_text("Reconnected.")
        ask(page, QUESTION)
        expect(answers.nth(1)).to_contain_text(ANSWER)
        expect(status).to_have_text("Ready.")
    (resumption,) = (
        each for each in map(json.loads, sent) if each["type"] == "antiphon.conversation.resume"
    )
    assert [each["text"] for each in resumption["delivered"]] == [ANSWER]


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
        expect(page.get_by_role("status")).to_have_text("Reconnected.")


# Lets the page try again at once.
WITHOUT_PAUSES = """
const later = setTimeout;
globalThis.setTimeout = (callback) => later(callback, 0);
"""


def test_a_conversation_goes_on_when_its_gateway_is_long_in_coming_back(served: str) -> None:
    """One that starts on a busy machine takes a minute, a node that is replaced several."""
    script = REFUSE_SOME + WITHOUT_PAUSES
    with (
        cut_connection(served) as connection,
        browser_page(connection.url, script=script, expected_errors=REFUSED) as page,
    ):
        ask(page, QUESTION)
        expect(page.get_by_role("status")).to_have_text("Ready.")
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
        page.evaluate("globalThis.refused = 14")
        connection.cut()
        expect(page.get_by_role("status")).to_have_text("Reconnected.")


def test_every_control_is_reached_and_named(page: Page) -> None:
    def reached(names: list[str]) -> None:
        for name in names:
            named = page.locator(":focus").evaluate(
                "each => each.labels?.[0]?.firstChild.textContent.trim() || each.ariaLabel"
                " || each.textContent.trim()"
            )
            assert named == name
            page.keyboard.press("Tab")

    page.get_by_role("button", name="Settings", exact=True).focus()
    reached(["Settings", "Events", "Reference", "Turns"])
    page.get_by_label("Message").focus()
    reached(["Message", "Send", "Talk"])
    page.get_by_role("button", name="Settings", exact=True).press("Enter")
    reached(
        [
            *("Close settings", "Voice", "Preview", "Answer", "Instructions", "Turn detection"),
            *("Pause in ms", "Threshold", "Temperature", "Tools, as JSON", "Insert an example"),
            *("API key", "Connect again"),
        ]
    )
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Escape")
    expect(page.get_by_role("button", name="Settings", exact=True)).to_be_focused()
    expect(page.locator("#settings")).to_be_hidden()


def test_reload_keeps_the_turns_and_the_model_knows_them(served: str) -> None:
    sent: list[dict[str, Any]] = []
    with browser_page(served) as page:
        choose(page, "Answer", "text")
        page.get_by_role("button", name="Settings", exact=True).click()
        page.get_by_label("Instructions").fill("Be brief.")
        page.get_by_role("button", name="Close settings").click()
        ask(page, QUESTION)
        turns = page.locator("#turns li")
        expect(page.get_by_text("Stages", exact=True)).to_be_visible()
        expect(page.get_by_role("status")).to_have_text("Ready.")
        shown = turns.all_inner_texts()
        page.on(
            "websocket",
            lambda socket: socket.on("framesent", lambda frame: sent.append(json.loads(frame))),
        )
        page.reload()
        expect(page.get_by_role("status")).to_have_text("Connected.")
        expect(turns).to_have_text([re.compile(QUESTION[:-1]), re.compile(ANSWER)])
        assert turns.all_inner_texts() == shown
        expect(page.locator("#output")).to_have_value("text")
        expect(page.locator("#instructions")).to_have_value("Be brief.")
        ask(page, QUESTION)
        expect(page.get_by_text("Stages", exact=True)).to_have_count(2)
        page.get_by_role("button", name="New conversation").click()
        expect(page.get_by_role("status")).to_have_text("Connected.")
        page.reload()
        expect(page.get_by_role("status")).to_have_text("Connected.")
        expect(turns).to_have_count(0)
    items = [each["item"] for each in sent if each["type"] == "conversation.item.create"]
    assert [(each["role"], each["content"][0]["text"]) for each in items] == [
        ("user", QUESTION),
        ("assistant", ANSWER),
        ("user", QUESTION),
    ]
    instructions = [
        each["session"]["instructions"]
        for each in sent
        if each["type"] == "session.update" and "instructions" in each["session"]
    ]
    assert set(instructions) == {"Be brief."}


def test_sound_of_an_answer_is_replayed_and_downloaded(served: str, tmp_path: Path) -> None:
    with browser_page(served, script=MARK_SOUND) as page:
        ask(page, QUESTION)
        answer = page.locator("#turns li.answer")
        expect(answer.get_by_text("First sound after")).to_be_visible()
        replay = answer.get_by_role("button", name="Replay")
        expect(replay).to_be_visible()
        interrupt = page.get_by_role("button", name="Interrupt")
        expect(interrupt).to_be_disabled()
        with page.expect_download() as download:
            answer.get_by_role("link", name="Download").click()
        path = tmp_path / "answer.wav"
        download.value.save_as(path)
        samples, rate_hz = soundfile.read(path)
        assert rate_hz == 24_000
        assert len(samples) > rate_hz
        assert abs(samples).max() > 0.01
        replay.click()
        expect(page.locator("html")).to_have_attribute("data-sounding", "replay-1")
        expect(interrupt).to_be_enabled()
        interrupt.click()
        expect(interrupt).to_be_disabled()


def test_voice_is_previewed(served: str) -> None:
    with browser_page(served, script=MARK_SOUND) as page:
        page.get_by_role("button", name="Settings", exact=True).click()
        page.get_by_label("API key").fill("antiphon-key")
        page.get_by_label("Voice", exact=True).select_option("treble")
        with page.expect_request("**/v1/chat/completions") as asked:
            page.get_by_role("button", name="Preview").click()
        assert asked.value.headers["authorization"] == "Bearer antiphon-key"
        assert asked.value.post_data_json["audio"]["voice"] == "treble"
        expect(page.locator("html")).to_have_attribute("data-sounding", "replay-1")


def test_function_is_called_with_its_result_from_the_user(page: Page) -> None:
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_role("button", name="Insert an example").click()
    page.get_by_role("button", name="Close settings").click()
    ask(page, "What time is it in Paris?")
    answers = page.locator("#turns li.answer")
    expect(answers.nth(0)).to_contain_text("get_time(")
    result = answers.nth(0).get_by_label("Result of get_time")
    result.fill('{"time": "10:30"}')
    result.press("Enter")
    expect(answers.nth(0)).to_contain_text('= {"time": "10:30"}')
    expect(answers.nth(1).locator(".words")).not_to_be_empty()
    expect(page.get_by_role("status")).to_have_text("Ready.")


def test_refused_setting_says_why(page: Page) -> None:
    page.get_by_role("button", name="Settings", exact=True).click()
    tools = page.get_by_label("Tools, as JSON")
    fault = page.get_by_role("alert")
    tools.fill("[{")
    tools.blur()
    expect(fault).to_contain_text("Tools: ")
    tools.fill('[{"type": "web_search"}]')
    tools.blur()
    expect(fault).to_have_text(
        "session.tools[0].type: only tools of the type 'function' are supported"
    )
    tools.fill("[]")
    tools.blur()
    expect(fault).to_be_empty()


def test_events_are_listed_filtered_and_copied(served: str) -> None:
    # As of a page without a secure context, which has no other clipboard.
    copies = "document.execCommand = () => { globalThis.copied = getSelection().toString(); };"
    script = f"Object.defineProperty(navigator, 'clipboard', {{ value: undefined }}); {copies}"
    with browser_page(served, script=script) as page:
        choose(page, "Answer", "text")
        ask(page, QUESTION)
        expect(page.get_by_text("Stages", exact=True)).to_be_visible()
        page.get_by_role("button", name="Events", exact=True).click()
        lines = page.get_by_role("list", name="Event log").get_by_role("listitem")
        expect(lines.filter(has_text="response.done")).to_be_visible()
        page.get_by_label("Filter").fill("item.create")
        expect(lines).to_have_count(1)
        lines.click()
        expect(lines).to_contain_text(QUESTION)
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        (copied,) = page.evaluate("copied").splitlines()
        assert QUESTION in copied
        page.get_by_role("button", name="Clear").click()
        page.get_by_label("Filter").fill("")
        expect(lines).to_have_count(0)


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("size", SIZES)
def test_nothing_overlaps(
    served: str, size: tuple[int, int], scheme: Literal["dark", "light"]
) -> None:
    with browser_page(served) as page:
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": size[0], "height": size[1]})
        assert overlaps(page) == []
        choose(page, "Answer", "text")
        ask(page, QUESTION)
        page.get_by_text("Stages", exact=True).click()
        assert overlaps(page) == []
        page.get_by_role("button", name="Talk").click()
        for pane in ("Settings", "Events"):
            page.get_by_role("button", name=pane, exact=True).click()
            assert overlaps(page) == []


def overlaps(page: Page) -> list[list[str]]:
    """Pairs of visible controls and texts that cover each other, and what is cut off sideways."""
    return page.evaluate(
        """() => {
          const parts = [...document.querySelectorAll(
            "button, a, input, select, textarea, label, h1, h2, header p, #state, #turns p, .facts"
          )].filter((each) => each.checkVisibility({ visibilityProperty: true })
            && !each.classList.contains("visually-hidden"));
          const box = (each) => {
            let { left, top, right, bottom } = each.getBoundingClientRect();
            // What is seen of it in what scrolls.
            for (let at = each.parentElement; at; at = at.parentElement) {
              if (getComputedStyle(at).overflowY === "visible") continue;
              const view = at.getBoundingClientRect();
              [left, right] = [Math.max(left, view.left), Math.min(right, view.right)];
              [top, bottom] = [Math.max(top, view.top), Math.min(bottom, view.bottom)];
            }
            return { left, top, right, bottom };
          };
          const found = [];
          if (document.documentElement.scrollWidth > innerWidth) found.push(["page", "too wide"]);
          parts.forEach((one, at) => parts.slice(at + 1).forEach((other) => {
            if (one.contains(other) || other.contains(one)) return;
            const [a, b] = [box(one), box(other)];
            const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
            const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
            if (wide > 1 && high > 1) found.push([one.outerHTML, other.outerHTML]);
          }));
          return found;
        }"""
    )
