"""The embedded model as `up` serves it, and speech from it, with OpenAI's client."""

from __future__ import annotations

import base64
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from openai import OpenAI

from antiphon_tools.launcher.plan import EMBEDDED_MODEL

ROOT = Path(__file__).parents[1]
NAME = Path(EMBEDDED_MODEL).name
STOP_S = 240


@dataclass
class ServedModel:
    """Where the gateway is, and what the launcher has said; all of it once it has ended."""

    url: str
    said: str

    @property
    def gateway_pid(self) -> int:
        """Of the gateway's first process."""
        (pid,) = re.findall(r"^gateway +\| started, process (\d+)", self.said, re.MULTILINE)
        return int(pid)


@contextmanager
def embedded_model(*arguments: str) -> Iterator[ServedModel]:
    """Real services on free ports; at the end they have to stop as they should.

    `arguments` of `up` may name another model.
    """
    ports = ("--port", "0", "--grpc-port", "0")
    command = [sys.executable, "-m", "antiphon_tools.launcher", "up", *ports, *arguments]
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
            served = ServedModel(url, said)
            yield served
            process.send_signal(signal.SIGINT)
            served.said += process.stdout.read()
            assert process.wait(STOP_S) == 0, served.said
        finally:
            process.kill()


def spoken_answer(url: str, question: str) -> tuple[str, bytes]:
    """The model's answer: its text, and its speech as a WAV file."""
    with OpenAI(base_url=f"{url}/v1", api_key="none") as api:
        answer = api.chat.completions.create(
            model=NAME,
            modalities=["text", "audio"],
            audio={"voice": "cantor", "format": "wav"},
            messages=[{"role": "user", "content": question}],
        )
    audio = answer.choices[0].message.audio
    assert audio is not None
    return audio.transcript, base64.b64decode(audio.data)
