"""What the command line chooses for tests of more than one folder."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from services.lm.reproducible import ask_for_equal_digits
from tools.launcher.plan import EMBEDDED_MODEL

ROOT = Path(__file__).parents[1]
STOP_S = 240

# As a talker does that is a process of its own.
ask_for_equal_digits()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--stage-engine`: what stages run on that can run on vLLM, where real services are started.

    `--browser`: also the tests that need one. `--clients`: also those of published clients.
    `--fuzz-seed`, `--fuzz-seconds`: what the fuzz of the door begins with, and for how long.
    `--write-orders`: write the orders of realtime events anew instead of comparing them.
    """
    parser.addoption("--clients", default="", help="with tests of these folders of tests/clients")
    parser.addoption("--browser", action="store_true", help="with tests that drive a browser")
    parser.addoption("--stage-engine", choices=("torch", "vllm"), default="torch")
    parser.addoption("--fuzz-seed", default="1", help="or one case as a failure names it")
    parser.addoption("--fuzz-seconds", type=float, default=30.0)
    parser.addoption("--write-orders", action="store_true")


def pytest_configure(config: pytest.Config) -> None:
    """With vLLM: what an engine that has died leaves to the collector is vLLM's own."""
    if config.getoption("--stage-engine") == "vllm":
        ignored = r"ignore:Unclosed context <zmq:ResourceWarning"
        config.addinivalue_line("filterwarnings", ignored)


@pytest.fixture(scope="session")
def served() -> Iterator[str]:
    """The URL of a gateway before the embedded model."""
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
            yield url
            process.send_signal(signal.SIGINT)
            said = process.stdout.read()
            assert process.wait(STOP_S) == 0, said
        finally:
            process.kill()


@pytest.fixture(scope="session")
def recording(served: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Speech: an answer of the model itself."""
    with OpenAI(base_url=f"{served}/v1", api_key="none") as api:
        answer = api.chat.completions.create(
            model=Path(EMBEDDED_MODEL).name,
            modalities=["text", "audio"],
            audio={"voice": "cantor", "format": "wav"},
            messages=[{"role": "user", "content": "What is antiphon?"}],
        )
    audio = answer.choices[0].message.audio
    assert audio is not None
    path = tmp_path_factory.mktemp("said") / "said.wav"
    path.write_bytes(base64.b64decode(audio.data))
    return path
