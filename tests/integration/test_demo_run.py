"""The demonstration and `up` as a newcomer starts them: the embedded model, real services."""

from __future__ import annotations

import base64
import os
import pty
import re
import signal
import subprocess
import sys
import wave
from pathlib import Path

import pytest
from matplotlib.image import imread
from openai import OpenAI

from tools.demo.script import SCRIPT
from tools.launcher.plan import EMBEDDED_MODEL

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
            [sys.executable, "-m", "tools.demo", "--out", str(tmp_path)],
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
    assert said.count("TTFT") - said.count("TTFT, TTFA:") == len(SCRIPT) + 1
    turns = [seconds_of(tmp_path / f"turn-{at}.wav") for at in range(1, len(SCRIPT) + 2)]
    assert seconds_of(tmp_path / "conversation.wav") > sum(turns[:-1])
    picture = imread(tmp_path / "demo.png")
    assert picture.shape[1] > picture.shape[0] > 500
    assert said.count("exited with status 0") == 4
    assert not left_running(said)


def test_up_serves_the_embedded_model_when_none_is_named(tmp_path: Path) -> None:
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
            _check_speech(url, tmp_path / "answer.wav")
            process.send_signal(signal.SIGINT)
            said += process.stdout.read()
            assert process.wait(TIMEOUT_S) == 0, said
        finally:
            process.kill()
    assert not left_running(said)


def _check_speech(url: str, path: Path) -> None:
    """Ask with OpenAI's client what is served, and for speech."""
    with OpenAI(base_url=f"{url}/v1", api_key="none") as api:
        model = api.models.list().data[0].id
        assert model == Path(EMBEDDED_MODEL).name
        answer = api.chat.completions.create(
            model=model,
            modalities=["text", "audio"],
            audio={"voice": "cantor", "format": "wav"},
            messages=[{"role": "user", "content": "What is antiphon?"}],
        )
    audio = answer.choices[0].message.audio
    assert audio is not None
    assert "Antiphon serves speech models" in audio.transcript
    path.write_bytes(base64.b64decode(audio.data))
    assert seconds_of(path) > 1
