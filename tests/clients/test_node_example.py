"""The example for Node, unmodified, with its packages from npm."""

from __future__ import annotations

import os
import re
import subprocess
import wave
from pathlib import Path

import pytest

from tests.embedded_model import ROOT, embedded_model

TIMEOUT_S = 240
PROGRAM = ROOT / "examples" / "node" / "generate.cjs"

pytestmark = pytest.mark.processes


def test_question_is_answered_over_grpc(tmp_path: Path) -> None:
    packages = Path(os.environ["CLIENT_ENVIRONMENTS"]) / "node_example" / "node_modules"
    out = tmp_path / "answer.wav"
    with embedded_model() as model:
        (address,) = re.findall(r"gRPC  (\S+)", model.said)
        ran = subprocess.run(
            ["node", str(PROGRAM), "--address", address, "--out", str(out), "What is antiphon?"],
            env=os.environ | {"NODE_PATH": str(packages)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "Antiphon serves speech models as small services." in ran.stdout
    with wave.open(str(out)) as file:
        assert file.getframerate() == 24_000
        assert file.getnframes() > 24_000
        assert any(file.readframes(file.getnframes()))
