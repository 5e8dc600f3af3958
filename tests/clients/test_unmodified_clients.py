"""Voice clients as their authors publish them, each in an environment of its own.

`make test-clients` makes the environments. A client is a folder here with a program that is
given the URL of `/v1/realtime` (Java's gets the gateway's own) and a recording, and fails if
the call does not go as it should.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tools.launcher.plan import EMBEDDED_MODEL

HERE = Path(__file__).parent
TIMEOUT_S = 200

pytestmark = pytest.mark.processes


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A case for each client that is asked for."""
    if "client" in metafunc.fixturenames:
        metafunc.parametrize("client", metafunc.config.getoption("--clients").split())


def test_a_published_client_talks(client: str, served: str, recording: Path) -> None:
    environment = Path(os.environ["CLIENT_ENVIRONMENTS"]) / client
    (script,) = (HERE / client).glob("talk_to_*")
    url = f"{served.replace('http', 'ws')}/v1/realtime?model={Path(EMBEDDED_MODEL).name}"
    match script.suffix:
        case ".mjs":
            # Node looks for packages beside the program.
            shutil.copy(script, environment)
            command = ["node", str(environment / script.name)]
        case ".java":
            command, url = ["java", str(script)], served
        case _:
            command = [str(environment / "bin" / "python"), str(script)]
    # Of its own folder and of nothing that is installed for the gateway.
    own = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
    ran = subprocess.run(
        [*command, url, str(recording)],
        cwd=environment,
        env=own,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-4000:] + ran.stderr[-4000:]
