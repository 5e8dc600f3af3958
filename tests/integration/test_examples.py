"""The examples do what their page says, against the demonstration model."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import wave
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr
from websockets.sync.client import ClientConnection, connect

from antiphon_gateway.media.g711 import MU_LAW, RATE_HZ
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_testkit.qwen3_tts.tiny_shape import BASE
from antiphon_tools.demo.script import SPOKEN
from tests.embedded_model import ROOT, ServedModel, embedded_model

TIMEOUT_S = 240
EXAMPLES = ROOT / "examples"
# Tested in `tests/clients`, with the packages of these frameworks.
FRAMEWORKS = {"pipecat_bot.py", "livekit_agent.py"}
# A machine without one may not have what the package needs.
SOUND_CARD = {
    "PYTHONPATH": f"{Path(__file__).parent / 'sound_card'}:{os.environ.get('PYTHONPATH', '')}"
}
# Of a call as Twilio's Media Streams have it.
STREAM = "MZ18ad3ab5a668481ce02b83e7395059f0"
FRAME_BYTES = RATE_HZ // 50
PAUSE_S = 2
ANSWER_WAIT_S = 240
SILENCE = b"\xff"

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def served() -> Iterator[ServedModel]:
    with embedded_model() as model:
        yield model


@pytest.fixture(scope="module")
def cloning(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a gateway before a model that clones voices."""
    folder = tmp_path_factory.mktemp("cloning") / "tiny-tts"
    build_tiny_tts(folder, BASE)
    with embedded_model("--model", str(folder)) as model:
        yield model.url


def run(example: str, *arguments: object, **environment: str) -> str:
    """What an example prints."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def seconds_of(path: Path) -> float:
    with wave.open(str(path)) as file:
        samples = file.readframes(file.getnframes())
        assert any(samples)
        return file.getnframes() / file.getframerate()


def test_every_example_is_on_the_page_and_has_help() -> None:
    page = (EXAMPLES / "README.md").read_text()
    examples = {each.name for each in EXAMPLES.glob("*.py")}
    assert examples == set(re.findall(r"python examples/(\w+\.py)", page))
    assert {each.name for each in EXAMPLES.glob("*.ipynb")} == set(re.findall(r"\w+\.ipynb", page))
    for each in sorted(examples - FRAMEWORKS):
        assert re.search("--(url|address) ", run(each, "--help", **SOUND_CARD))


def test_chat(served: ServedModel, tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    printed = run("chat.py", "What is antiphon?", "--url", served.url, "--out", out)
    assert printed.startswith("Antiphon serves speech models")
    assert seconds_of(out) > 1


def test_functions(served: ServedModel, tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    printed = run("functions.py", "What time is it in Paris?", "--url", served.url, "--out", out)
    result = r'get_time\({"city": "[Pp]aris"}\) = {"time": "\d\d:\d\d"}'
    assert re.fullmatch(result + r"\nIt is .* in Paris\.\n", printed), printed
    assert seconds_of(out) > 0.5


def test_realtime(served: ServedModel, tmp_path: Path) -> None:
    question, out = tmp_path / "question.wav", tmp_path / "answer.wav"
    samples, rate_hz = soundfile.read(SPOKEN, dtype="int16")
    soundfile.write(question, samples, rate_hz, subtype="PCM_16")
    printed = run("realtime.py", question, "--url", served.url, "--out", out)
    assert "Model: There are three stages" in printed
    assert re.search(r"First audio \d+\.\d\d s after the end of the turn", printed)
    assert seconds_of(out) > 1


def test_conversation(served: ServedModel, tmp_path: Path) -> None:
    (address,) = re.findall(r"gRPC  (\S+)", served.said)
    out = tmp_path / "answer.wav"
    printed = run("conversation.py", "--address", address, "--out", out)
    first, second = re.findall(r"Model: (.+)", printed)
    assert first.endswith("[cancelled]")
    assert second.endswith("[completed]")
    assert seconds_of(out) > 1


def test_clone(cloning: str, tmp_path: Path) -> None:
    out, says = tmp_path / "speech.wav", "What are the stages?"
    arguments = (SPOKEN, "How does it work?", "--says", says, "--url", cloning, "--out", out)
    assert run("clone.py", *arguments) == f"The speech is in {out}.\n"
    assert seconds_of(out) > 0


def test_batch(cloning: str, tmp_path: Path) -> None:
    texts = [tmp_path / f"{name}.txt" for name in ("one", "two", "three")]
    for text in texts:
        text.write_text(f"This is {text.stem}.")
    out = tmp_path / "speech"
    arguments = (*texts, "--recording", SPOKEN, "--url", cloning, "--at-once", "2", "--out", out)
    assert f"3 of 3 files are in {out}.\n" in run("batch.py", *arguments)
    written = sorted(out.iterdir())
    assert [each.name for each in written] == ["one.wav", "three.wav", "two.wav"]
    assert all(seconds_of(each) > 0 for each in written)
    times = [each.stat().st_mtime_ns for each in written]
    texts[0].write_text("It is left out.")
    assert run("batch.py", *arguments) == f"3 of 3 files are in {out}.\n"
    assert [each.stat().st_mtime_ns for each in written] == times


def test_microphone(served: ServedModel, tmp_path: Path) -> None:
    recording = tmp_path / "question.wav"
    samples, rate_hz = soundfile.read(SPOKEN, dtype="float32")
    soundfile.write(recording, soxr.resample(samples, rate_hz, 24_000), 24_000, subtype="PCM_16")
    arguments = ("--url", served.url, "--turns", 1)
    printed = run("microphone.py", *arguments, **SOUND_CARD, RECORDING=str(recording))
    assert "You: What are the stages?\n" in printed
    assert "Model: There are three stages" in printed


@contextmanager
def bridge(url: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Its own URL, and the process."""
    command = [sys.executable, str(ROOT / "examples" / "twilio.py"), "--url", url, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.fullmatch(r"Calls are answered at (ws://\S+)\n", line)
            assert found, line
            yield found[1], process
        finally:
            process.kill()


def say(phone: ClientConnection, speech: bytes) -> None:
    """Send frames of 20 ms, with the pause that ends a turn."""
    speech += SILENCE * (PAUSE_S * RATE_HZ)
    for chunk, start in enumerate(range(0, len(speech), FRAME_BYTES), 1):
        media = {
            "track": "inbound",
            "chunk": str(chunk),
            "timestamp": str(20 * chunk),
            "payload": base64.b64encode(speech[start : start + FRAME_BYTES]).decode(),
        }
        frame = {"event": "media", "sequenceNumber": str(chunk), "media": media}
        phone.send(json.dumps({**frame, "streamSid": STREAM}))


def test_twilio(served: ServedModel) -> None:
    samples, rate_hz = soundfile.read(SPOKEN, dtype="float32")
    pcm16 = soxr.resample(samples, rate_hz, RATE_HZ).clip(-1, 1) * 32767
    speech = MU_LAW.encode(pcm16.astype(np.int16))
    with bridge(served.url) as (url, process), connect(url) as phone:
        phone.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
        media_format = {"encoding": "audio/x-mulaw", "sampleRate": 8000, "channels": 1}
        start = {"streamSid": STREAM, "tracks": ["inbound"], "mediaFormat": media_format}
        phone.send(json.dumps({"event": "start", "start": start, "streamSid": STREAM}))
        say(phone, speech)
        heard, marked_ms = b"", 0
        while len(heard) < RATE_HZ:
            message = json.loads(phone.recv(ANSWER_WAIT_S))
            assert message["streamSid"] == STREAM
            if message["event"] == "media":
                heard += base64.b64decode(message["media"]["payload"])
            if message["event"] == "mark":
                # It has been played to here.
                phone.send(json.dumps(message))
                marked_ms = int(message["mark"]["name"].rpartition(":")[2])
        assert abs(len(heard) / RATE_HZ - marked_ms / 1000) < 1
        assert len(set(heard)) > 16
        say(phone, speech)
        while json.loads(phone.recv(ANSWER_WAIT_S))["event"] != "clear":
            pass
        assert process.stdout is not None
        answers = [process.stdout.readline() for _ in range(2)]
        assert answers[0].startswith("Model: ")
        assert all(each.startswith("Model: ") for each in answers), answers
        phone.send(json.dumps({"event": "stop", "streamSid": STREAM}))
        # The bridge hangs up.
        for _ in phone:
            pass
