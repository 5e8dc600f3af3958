"""Hosts that have IPv4 or IPv6 alone: every listener works, with the settings of both families."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

LOOPBACKS = {"IPv4": "127.0.0.1", "IPv6": "[::1]"}
HOSTS = ("localhost", "[::]")


def _namespaces() -> bool:
    """Whether this user may make network namespaces."""
    program = shutil.which("unshare")
    if program is None or shutil.which("ip") is None:
        return False
    done = subprocess.run([program, "-rn", "true"], capture_output=True, check=False)
    return done.returncode == 0


@pytest.mark.skipif(not _namespaces(), reason="needs unshare -rn and ip")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("family", ["IPv4", "IPv6"])
def test_a_deployment_speaks_on_a_host_of_one_family(family: str) -> None:
    """Whichever of `HOSTS` it listens at. One process starts both deployments."""
    command = ["unshare", "-rn", sys.executable, "-m", "tests.cluster.one_family", family, *HOSTS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for host in HOSTS:
        assert f"{host} http://{LOOPBACKS[family]}:" in done.stdout
