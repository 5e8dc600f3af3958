"""A deployment on a host of one address family: `python -m tests.cluster.one_family FAMILY HOST`.

To be run in a network namespace of its own (`unshare -rn`). It takes the other family away, starts
the embedded model with every listener at HOST, and talks to it by localhost.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx

import antiphon
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon_tools.launcher.launcher import Launcher

ROLES = ("thinker", "talker", "code2wav")
LOOPBACKS = {"IPv4": "127.0.0.1/8", "IPv6": "::1/128"}


def leave_only(family: str) -> None:
    """Bring the loopback interface up with addresses of this family alone."""
    _ip("link", "set", "lo", "up")
    (other,) = LOOPBACKS.keys() - {family}
    _ip("address", "delete", LOOPBACKS[other], "dev", "lo")
    if other == "IPv6":
        Path("/proc/sys/net/ipv6/conf/all/disable_ipv6").write_text("1")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


async def talk(host: str) -> None:
    """Start everything, ask once over HTTP and once with the SDK, stop everything."""
    stage = StageConfig(listen=f"{host}:0", metrics_listen=f"{host}:0", health_listen=f"{host}:0")
    deployment = Deployment(
        stages=dict.fromkeys(ROLES, stage),
        gateway=GatewayConfig(
            http_listen=f"{host}:0", grpc_listen=f"{host}:0", metrics_listen=f"{host}:0"
        ),
    )
    async with Launcher(deployment) as running:
        async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
            told = await http.get("/health")
            assert told.status_code == 200, told.text
        for process in list(running.processes.values())[: len(ROLES)]:
            async with httpx.AsyncClient(timeout=240) as http:
                assert (await http.get(process.metrics_url)).status_code == 200
        async with antiphon.AsyncClient(running.grpc_address) as client:
            said = await client.generate("Hello!").collect()
        assert said.text
        print(running.http_url, running.grpc_address, said.text)


if __name__ == "__main__":
    leave_only(sys.argv[1])
    asyncio.run(talk(sys.argv[2]))
