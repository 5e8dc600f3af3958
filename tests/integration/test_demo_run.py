"""The demonstration and `up` as a newcomer starts them: the embedded model, real services."""

from __future__ import annotations

import base64
import os
import pty
import re
import subprocess
import sys
import wave
from pathlib import Path
from urllib.request import urlopen

import pytest
import soundfile
import soxr
from matplotlib.image import imread
from openai import AsyncOpenAI, OpenAI

from antiphon_tools.demo.script import SCRIPT, SPOKEN
from tests.embedded_model import NAME, embedded_model, spoken_answer

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 240

pytestmark = pytest.mark.processes


def left_running(said: str) -> list[int]:
    """The processes that a launcher started and that still are."""
    pids = [int(pid) for pid in re.findall(r"started, process (\d+)", said)]
    assert len(pids) == 4
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def seconds_of(path: Path) -> float:
    with wave.open(str(path)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24_000)
        assert any(file.readframes(file.getnframes()))
        seconds: float = file.getnframes() / file.getframerate()
        return seconds


def test_demo_talks_answers_what_is_typed_and_leaves_nothing_running(tmp_path: Path) -> None:
    person, terminal = pty.openpty()
    os.write(person, b"Good morning!\nquit\n")
    try:
        result = subprocess.run(
            [sys.executable, "-m", "antiphon_tools.demo", "--out", str(tmp_path)],
            cwd=ROOT,
            stdin=terminal,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
    finally:
        os.close(person)
        os.close(terminal)
    said = result.stdout
    assert result.returncode == 0, said + result.stderr
    assert not result.stderr
    assert all(f"you       {question.text}\n" in said for question in SCRIPT)
    assert said.count("TTFT") - said.count("TTFT: time to first text") == len(SCRIPT) + 1
    transcript = "          transcribed: What are the stages?\n"
    assert f"as a spoken recording\n{transcript}cantor    There are three stages: thinker" in said
    called = 'set_light({"room": "kitchen", "state": "on"})\n          returns {"ok": true}\n'
    assert f"{called}cantor    The light in the kitchen is on.\n" in said
    turns = [seconds_of(tmp_path / f"turn-{at}.wav") for at in range(1, len(SCRIPT) + 2)]
    assert seconds_of(tmp_path / "conversation.wav") > sum(turns[:-1])
    picture = imread(tmp_path / "demo.png")
    assert picture.shape[1] > picture.shape[0] > 500
    assert said.count("exited with status 0") == 4
    assert not left_running(said)


def test_up_serves_the_embedded_model_when_none_is_named(tmp_path: Path) -> None:
    with embedded_model() as model:
        with OpenAI(base_url=f"{model.url}/v1", api_key="none") as api:
            assert api.models.list().data[0].id == NAME
            with SPOKEN.open("rb") as recording:
                heard = api.audio.transcriptions.create(model=NAME, file=recording)
            assert heard.text == "What are the stages?"
        transcript, speech = spoken_answer(model.url, "What is antiphon?")
        assert "Antiphon serves speech models" in transcript
        path = tmp_path / "answer.wav"
        path.write_bytes(speech)
        assert seconds_of(path) > 1
    assert not left_running(model.said)


@pytest.mark.asyncio
async def test_spoken_turn_of_a_conversation_is_written_down_and_answered() -> None:
    samples, rate_hz = soundfile.read(SPOKEN, dtype="float32")
    pcm16 = (soxr.resample(samples, rate_hz, 24_000).clip(-1, 1) * 32767).astype("<i2").tobytes()
    heard = {"transcription": {"model": NAME}, "turn_detection": None}
    session = {"type": "realtime", "output_modalities": ["text"], "audio": {"input": heard}}
    texts: dict[str, str] = {}
    with embedded_model() as model:
        async with (
            AsyncOpenAI(base_url=f"{model.url}/v1", api_key="none") as api,
            api.realtime.connect(model=NAME) as talk,
        ):
            await talk.session.update(session=session)  # type: ignore[arg-type]
            await talk.input_audio_buffer.append(audio=base64.b64encode(pcm16).decode())
            await talk.input_audio_buffer.commit()
            await talk.response.create()
            while len(texts) < 2:
                event = await talk.recv()
                assert event.type != "error", event
                if event.type == "conversation.item.input_audio_transcription.completed":
                    texts["heard"] = event.transcript
                elif event.type == "response.output_text.done":
                    texts["answered"] = event.text
    assert texts["heard"] == "What are the stages?"
    assert texts["answered"].startswith("There are three stages")


def test_a_start_logs_nothing_that_looks_like_a_failure() -> None:
    with embedded_model() as model:
        for path in ("", "page/app.js"):
            with urlopen(f"{model.url}/{path}") as answer:
                assert answer.status == 200
    # A loaded machine delays an event loop, which the gateway reports.
    said = [line for line in model.said.splitlines() if "the event loop was" not in line]
    alarming = re.compile("warning|error|traceback|deprecat|unrecogni[sz]ed", re.IGNORECASE)
    assert [line for line in said if alarming.search(line)] == []
    for role in ("thinker", "talker", "code2wav"):
        assert (
            len([line for line in said if re.search(rf"stage {role} at \S+ is ready$", line)]) == 1
        )
        assert len([line for line in said if re.match(rf"{role} *\| ready after", line)]) == 1
    assert [line for line in said if '"request":"GET /' in line] == []
