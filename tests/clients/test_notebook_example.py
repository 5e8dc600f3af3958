"""The notebook, executed with the published client."""

from __future__ import annotations

import base64
import io
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
import soundfile

from tests.embedded_model import ROOT

TIMEOUT_S = 300
PROGRAM = Path(__file__).parent / "notebook" / "run_notebook.py"
ANSWER = "Antiphon serves speech models as small services."

pytestmark = pytest.mark.processes


def test_notebook_shows_text_and_speech(served: str) -> None:
    python = Path(os.environ["CLIENT_ENVIRONMENTS"]) / "notebook" / "bin" / "python"
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        [str(python), str(PROGRAM), str(ROOT / "examples" / "speech.ipynb")],
        env=own | {"ANTIPHON_URL": served},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    named, asked, streamed, transcribed = json.loads(ran.stdout.splitlines()[-1])
    assert "antiphon-demo" in named[0]["data"]["text/plain"]
    assert asked[0]["text"] == f"{ANSWER}\n"
    player = asked[1]["data"]["text/html"]
    (audio,) = re.findall(r"data:audio/\S+?;base64,([^\"]+)", player)
    samples, rate_hz = soundfile.read(io.BytesIO(base64.b64decode(audio)))
    assert len(samples) > rate_hz
    assert abs(samples).max() > 0.01
    assert "".join(each["text"] for each in streamed) == ANSWER
    # The demonstration model hears its own voice well enough for a transcript, of any words.
    assert len(transcribed[0]["data"]["text/plain"].split()) > 1
