"""Hosts that have IPv4 or IPv6 alone: every listener works, with the settings of both families."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

LOOPBACKS = {"IPv4": "127.0.0.1", "IPv6": "[::1]"}


def _namespaces() -> bool:
    """Whether this user may make network namespaces."""
    program = shutil.which("unshare")
    if program is None or shutil.which("ip") is None:
        return False
    done = subprocess.run([program, "-rn", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not _namespaces(), reason="needs unshare -rn and ip")
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
@pytest.mark.parametrize("host", ["localhost", "[::]"])
def test_a_deployment_speaks_on_a_host_of_one_family(family: str, host: str) -> None:
    command = ["unshare", "-rn", sys.executable, "-m", "tests.cluster.one_family", family, host]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"http://{LOOPBACKS[family]}:" in done.stdout
