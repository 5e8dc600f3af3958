"""The page with a model that reads aloud: Ming TTS, whose audio has 44.1 kHz."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import WebSocket, expect

from antiphon.pipelines.ming_tts import FRAME_SAMPLES, SAMPLE_RATE_HZ
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import WINDOWED
from tests.browser.in_browser import browser_page
from tests.embedded_model import embedded_model

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

pytestmark = pytest.mark.processes

TEXT = "Read this."
PAGE_RATE_HZ = 24_000
# Notes the rate of each loudspeaker, and how much of the latest item it has played.
NOTE_PLAYED = """
const Node = AudioWorkletNode;
globalThis.AudioWorkletNode = class extends Node {
  constructor(context, name, options) {
    super(context, name, options);
    if (name !== "player") return;
    document.documentElement.dataset.rate = context.sampleRate;
    this.port.addEventListener("message", ({ data }) => {
      document.documentElement.dataset.played = data.played;
    });
  }
};
"""


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway before the model."""
    folder = tmp_path_factory.mktemp("reading") / "tiny"
    build_tiny_ming(folder, WINDOWED)
    with embedded_model("--model", str(folder)) as model:
        yield model.url


def test_what_is_typed_is_spoken_at_its_own_speed(reading: str) -> None:
    told: list[dict[str, Any]] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framereceived", lambda frame: told.append(json.loads(frame)))

    with browser_page(reading, script=NOTE_PLAYED) as page:
        page.on("websocket", listen)
        page.get_by_role("button", name="Connect again").click()
        expect(page.get_by_role("status")).to_have_text("Connected.")
        page.get_by_label("Message").fill(TEXT)
        page.get_by_role("button", name="Speak").click()
        expect(page.locator("#turns li.answer")).to_contain_text(TEXT)
        expect(page.get_by_role("status")).to_have_text("Ready.")
        expect(page.get_by_role("button", name="Interrupt")).to_be_disabled()
        (done,) = (each["response"] for each in told if each["type"] == "response.done")
        steps = done["usage"]["output_token_details"]["audio_tokens"]
        seconds = steps * FRAME_SAMPLES / SAMPLE_RATE_HZ
        expect(page.locator("html")).to_have_attribute("data-rate", str(PAGE_RATE_HZ))
        expect(page.locator("html")).to_have_attribute(
            "data-played", str(round(seconds * PAGE_RATE_HZ))
        )
    deltas = [each["delta"] for each in told if each["type"] == "response.output_audio.delta"]
    sent = sum(len(base64.b64decode(each)) for each in deltas)
    assert sent == 2 * round(seconds * PAGE_RATE_HZ)


def test_what_the_model_cannot_do_is_not_offered(reading: str) -> None:
    with browser_page(reading) as page:
        expect(page.locator("#talk")).to_be_hidden()
        expect(page.locator("#output")).to_be_hidden()
        expect(page.get_by_label("Tools, as JSON")).to_be_hidden()
        expect(page.get_by_label("Voice")).to_be_enabled()
