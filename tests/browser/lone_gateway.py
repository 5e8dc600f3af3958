"""A gateway in a process of its own whose stages are not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig, dump_deployment

NOBODY = "127.0.0.1:1"
STOP_S = 60


@contextmanager
def lone_gateway(directory: Path, *, keys_file: str = "") -> Iterator[str]:
    """Its URL."""
    gateway = GatewayConfig(
        http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0", keys_file=keys_file, drain_s=0.01
    )
    roles = ("thinker", "talker", "code2wav")
    stages = {role: StageConfig(addresses=(NOBODY,)) for role in roles}
    deployment = Deployment(pipeline="qwen3_omni", stages=stages, gateway=gateway)
    config = directory / "deployment.yaml"
    config.write_bytes(dump_deployment(deployment))
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "antiphon_gateway", "--config", str(config)]
    with (
        os.fdopen(reading) as announced,
        subprocess.Popen([*command, "--announce-fd", str(writing)], pass_fds=(writing,)) as process,
    ):
        os.close(writing)
        try:
            endpoints = json.loads(announced.readline())
            yield f"http://{endpoints['http']}"
            process.terminate()
            assert process.wait(STOP_S) == 0
        finally:
            process.kill()


def keys_file(directory: Path, sha256: str) -> str:
    """A file with the hash of one key."""
    path = directory / "keys.yaml"
    path.write_bytes(msgspec.yaml.encode({"keys": [{"name": "caller", "sha256": sha256}]}))
    return str(path)
