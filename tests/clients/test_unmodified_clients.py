"""Voice clients as their authors publish them, each in an environment of its own.

`make test-clients` makes the environments. A client is a folder here with a program `talk_to_*`
that is given the URL of `/v1/realtime` (Java's gets the gateway's own) and a recording, and fails
if the call does not go as it should. A framework's cascade is a program `cascade_with_*`, which is
given the URLs of two gateways, a recording and what it says.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import soundfile
import soxr

from antiphon_tools.launcher.plan import EMBEDDED_MODEL

HERE = Path(__file__).parent
RECORDINGS = HERE.parent / "recordings"
SAID = "Turn the light in the kitchen on."
TIMEOUT_S = 200

pytestmark = pytest.mark.processes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A case for each client that is asked for, and has a program of the kind."""
    kind = {"talker": "talk_to_*", "cascade": "cascade_with_*"}
    for name in kind.keys() & set(metafunc.fixturenames):
        clients = metafunc.config.getoption("--clients").split()
        found = [each for client in clients for each in (HERE / client).glob(kind[name])]
        metafunc.parametrize(name, found, ids=[each.parent.name for each in found])


def check_runs(script: Path, *arguments: str) -> None:
    """Run a program in its client's environment; it has to end well."""
    environment = Path(os.environ["CLIENT_ENVIRONMENTS"]) / script.parent.name
    match script.suffix:
        case ".mjs":
            # Node looks for packages beside the program.
            shutil.copy(script, environment)
            command = ["node", str(environment / script.name)]
        case ".java":
            command = ["java", str(script)]
        case _:
            command = [str(environment / "bin" / "python"), str(script)]
    # Of its own folder and of nothing that is installed for the gateway.
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        [*command, *arguments],
        cwd=environment,
        env=own,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]


def test_a_published_client_talks(talker: Path, served: str, recording: Path) -> None:
    url = f"{served.replace('http', 'ws')}/v1/realtime?model={Path(EMBEDDED_MODEL).name}"
    check_runs(talker, served if talker.suffix == ".java" else url, str(recording))


def test_a_published_cascade_runs_with_its_defaults(
    cascade: Path, served: str, reading_aloud: str, tmp_path: Path
) -> None:
    """Nothing but the base URLs is set: what hears and answers, and what reads aloud."""
    samples, rate_hz = soundfile.read(RECORDINGS / "light.ogg")
    said = tmp_path / "said.wav"
    # The default rate of Pipecat's input. LiveKit resamples.
    soundfile.write(said, soxr.resample(samples, rate_hz, 16_000), 16_000, subtype="PCM_16")
    check_runs(cascade, served, reading_aloud, str(said), SAID)
