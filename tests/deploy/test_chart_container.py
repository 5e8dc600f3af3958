"""The container in which several stages share an accelerator, run as it is rendered."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.cluster.own_address import own_address
from tests.deploy.chart_colocation import place_of
from tests.deploy.chart_rendering import ROOT, render

pytestmark = pytest.mark.processes

SERVES = health_pb2.HealthCheckResponse.SERVING
ASKED_S = 60.0


def read_until(process: subprocess.Popen[str], mark: str) -> str:
    """What is printed up to the line with the mark."""
    said = ""
    for line in process.stdout or ():
        said += line
        if re.search(mark, line):
            return said
    raise AssertionError(f"it ended before {mark!r}:\n{said}")


@contextmanager
def container(folder: Path, address: str) -> Iterator[subprocess.Popen[str]]:
    """The rendered command with the rendered file, at an address of its own; its stages are real
    processes with engines that compute nothing. There is no gateway, as in the stages' image."""
    speech = {"stages": ["talker", "code2wav"], "accelerators": "shared"}
    rendered = render({"colocated": {"speech": speech}})
    (config,) = (
        each["data"]["deployment.yaml"]
        for each in rendered.of_kind("ConfigMap").values()
        if "deployment.yaml" in each["data"]
    )
    config = config.replace("[::]:", f"{address}:").replace("/app/", f"{ROOT}/")
    (folder / "deployment.yaml").write_text(config)
    package = folder / "services" / "antiphon_services"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import runpy\nrunpy.run_module('tests.integration.fake_stage', run_name='__main__')\n"
    )
    _, box = place_of(rendered, "talker")
    python, *words = box["command"]
    words = [each.replace("[::]:", f"{address}:") for each in words]
    words = [each.replace("/etc/antiphon", str(folder)) for each in words]
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "POD_IP": address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        bufsize=1,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def says(address: str, name: str) -> bool:
    with grpc.insecure_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=name)
        return bool(stub.Check(request, timeout=ASKED_S).status == SERVES)


def test_container_is_ready_when_its_stages_are_and_starts_one_that_ends_again(
    tmp_path: Path,
) -> None:
    address = own_address()
    probes = f"{address}:50055"
    with container(tmp_path, address) as process:
        said = read_until(process, "^ready in .*: talker, code2wav")
        assert (says(probes, "ready"), says(probes, "alive")) == (True, True)
        # Each at the ports that its service leads to.
        for port in (50051, 50061):
            assert says(f"{address}:{port}", "")
        (pid,) = re.findall(r"code2wav *\| started, process (\d+)", said)
        os.kill(int(pid), signal.SIGKILL)
        said = read_until(process, r"code2wav *\| ready after")
        # Lines that it logged before may come late.
        assert not re.search(r"talker *\| (was killed|starts again|started)", said)
        assert (says(probes, "ready"), says(probes, "alive")) == (True, True)
        process.send_signal(signal.SIGTERM)
        assert process.wait(ASKED_S) == 0
