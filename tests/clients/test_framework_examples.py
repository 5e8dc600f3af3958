"""The examples for voice frameworks, unmodified, with the frameworks as their authors publish them.

Each converses with the demonstration model by a sound card whose microphone has a recording.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from antiphon_tools.demo.script import SPOKEN
from tests.embedded_model import ROOT

RATE_HZ = 24_000
STOP_S = 120
EXAMPLES = ROOT / "examples"
SOUND_CARD = ROOT / "tests" / "integration" / "sound_card"
ASKED, ANSWERED = "You: What are the stages?", "Model: There are three stages"

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def question(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A spoken question, at the rate of the sound card."""
    path = tmp_path_factory.mktemp("said") / "question.wav"
    samples, rate_hz = soundfile.read(SPOKEN, dtype="float32")
    soundfile.write(path, soxr.resample(samples, rate_hz, RATE_HZ), RATE_HZ, subtype="PCM_16")
    return path


@pytest.fixture
def client(request: pytest.FixtureRequest) -> str:
    """The framework whose environment an example runs in, if it is asked for."""
    name = request.node.name.split("_")[1]
    if name not in request.config.getoption("--clients").split():
        pytest.skip(f"CLIENTS does not name {name}")
    return name


@contextmanager
def conversing(
    client: str, example: str, *arguments: str, **environment: str
) -> Iterator[Iterator[str]]:
    """The lines that an example prints, which Ctrl-C has to end."""
    python = Path(os.environ["CLIENT_ENVIRONMENTS"]) / client / "bin" / "python"
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with subprocess.Popen(
        [str(python), "-u", str(EXAMPLES / example), *arguments],
        env=own | environment | {"PYTHONPATH": str(SOUND_CARD)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield iter(process.stdout.readline, "")
            process.send_signal(signal.SIGINT)
            rest, _ = process.communicate(timeout=STOP_S)
            assert process.returncode in (0, -signal.SIGINT), rest
        finally:
            process.kill()


def check_turn(lines: Iterator[str]) -> None:
    """The user's words are shown, then the model's."""
    seen: list[str] = []
    for expected in (ASKED, ANSWERED):
        for line in lines:
            seen.append(line)
            assert not line.startswith("Error"), seen
            if line.startswith(expected):
                break
        else:
            pytest.fail("".join(seen))


def check_heard(path: Path) -> None:
    """At least a second of the answer was played."""
    samples = np.fromfile(path, np.int16)
    assert np.count_nonzero(samples) > RATE_HZ


def test_pipecat_bot_converses(client: str, served: str, question: Path, tmp_path: Path) -> None:
    heard = tmp_path / "heard.pcm"
    sound = {"RECORDING": str(question), "HEARD": str(heard)}
    with conversing(client, "pipecat_bot.py", "--url", served, **sound) as lines:
        check_turn(lines)
    check_heard(heard)


def test_livekit_agent_converses(client: str, served: str, question: Path, tmp_path: Path) -> None:
    heard = tmp_path / "heard.pcm"
    sound = {"RECORDING": str(question), "HEARD": str(heard), "ANTIPHON_URL": served}
    with conversing(client, "livekit_agent.py", "console", **sound) as lines:
        check_turn(lines)
    check_heard(heard)
