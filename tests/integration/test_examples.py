"""The examples do what their page says, against the demonstration model."""

from __future__ import annotations

import re
import subprocess
import sys
import wave
from collections.abc import Iterator
from pathlib import Path

import pytest
import soundfile

from antiphon_tools.demo.script import SPOKEN
from tests.embedded_model import ROOT, ServedModel, embedded_model

TIMEOUT_S = 240
EXAMPLES = ROOT / "examples"

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def served() -> Iterator[ServedModel]:
    with embedded_model() as model:
        yield model


def run(example: str, *arguments: object) -> str:
    """What an example prints."""
    ran = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *map(str, arguments)],
        capture_output=True,
        text=True,
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
    for each in sorted(examples):
        assert "--out" in run(each, "--help")


def test_chat(served: ServedModel, tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    printed = run("chat.py", "What is antiphon?", "--url", served.url, "--out", out)
    assert printed.startswith("Antiphon serves speech models")
    assert seconds_of(out) > 1


def test_functions(served: ServedModel, tmp_path: Path) -> None:
    out = tmp_path / "answer.wav"
    printed = run("functions.py", "What time is it in Paris?", "--url", served.url, "--out", out)
    called = re.search(r'get_time\({"city": "[Pp]aris"}\) = (\d\d:\d\d)\n', printed)
    assert called, printed
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
