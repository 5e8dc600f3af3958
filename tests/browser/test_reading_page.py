"""The page with a model that reads aloud: Ming TTS, whose audio has 44.1 kHz."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import soundfile
from playwright.sync_api import WebSocket, expect

from antiphon.pipelines.ming_tts import FRAME_SAMPLES, SAMPLE_RATE_HZ
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import WINDOWED
from antiphon_tools.demo.script import SPOKEN
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


def test_options_and_a_recording_of_the_voice_are_sent(reading: str) -> None:
    sent: list[dict[str, Any]] = []

    def listen(socket: WebSocket) -> None:
        socket.on("framesent", lambda frame: sent.append(json.loads(frame)))

    with browser_page(reading) as page:
        page.on("websocket", listen)
        # There is room for the settings beside the turns, where they are open by themselves.
        page.get_by_label("Instruction", exact=True).fill("Slowly.")
        page.get_by_label("What the recording says").fill("What are the stages?")
        page.get_by_role("button", name="Connect again").click()
        expect(page.get_by_role("status")).to_have_text("Connected.")
        page.get_by_label("Voice to clone").set_input_files(SPOKEN)
        page.get_by_label("Message").fill(TEXT)
        page.get_by_role("button", name="Speak").click()
        expect(
            page.locator("#turns li.answer").get_by_role("button", name="Replay")
        ).to_be_visible()
        expect(page.get_by_role("alert")).to_be_empty()
    options: dict[str, Any] = {}
    for each in sent:
        if each["type"] == "session.update":
            options |= each["session"].get("antiphon", {}).get("options", {})
    recording = base64.b64decode(options.pop("reference_audio")["data"])
    assert options == {"instruction": "Slowly.", "reference_text": "What are the stages?"}
    samples, rate_hz = soundfile.read(io.BytesIO(recording))
    spoken, spoken_hz = soundfile.read(SPOKEN)
    assert rate_hz == PAGE_RATE_HZ
    assert len(samples) / rate_hz == pytest.approx(len(spoken) / spoken_hz, abs=0.01)
    assert samples.std() == pytest.approx(spoken.std(), rel=0.1)


def test_what_the_model_cannot_do_is_not_offered(reading: str) -> None:
    with browser_page(reading) as page:
        expect(page.locator("#talk")).to_be_hidden()
        expect(page.locator("#output")).to_be_hidden()
        expect(page.get_by_label("Tools, as JSON")).to_be_hidden()
        expect(page.get_by_label("Voice", exact=True)).to_be_enabled()
