"""Deployments on a host of one address family: `python -m tests.cluster.one_family FAMILY HOST...`.

To be run in a network namespace of its own (`unshare -rn`). It takes the other family away. For
each HOST, it starts the embedded model with every listener there, and talks to it by localhost.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import httpx

import antiphon
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon_tools.launcher.launcher import Launcher
from antiphon_tools.warm.launcher import WarmLauncher

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


async def talk(host: str, launcher: type[Launcher] = Launcher) -> None:
    """Start everything, ask once over HTTP and once with the SDK, stop everything."""
    stage = StageConfig(listen=f"{host}:0", metrics_listen=f"{host}:0", health_listen=f"{host}:0")
    deployment = Deployment(
        stages=dict.fromkeys(ROLES, stage),
        gateway=GatewayConfig(
            http_listen=f"{host}:0", grpc_listen=f"{host}:0", metrics_listen=f"{host}:0"
        ),
    )
    async with launcher(deployment) as running:
        async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
            told = await http.get("/health")
            assert told.status_code == 200, told.text
        for process in list(running.processes.values())[: len(ROLES)]:
            async with httpx.AsyncClient(timeout=240) as http:
                assert (await http.get(process.metrics_url)).status_code == 200
        async with antiphon.AsyncClient(running.grpc_address) as client:
            said = await client.generate("Hello!").collect()
        assert said.text
        print(host, running.http_url, running.grpc_address, said.text)


async def talk_on_each(hosts: Sequence[str]) -> None:
    """One after the other, with stages that are forked from one server."""
    for host in hosts:
        await talk(host, WarmLauncher)


if __name__ == "__main__":
    leave_only(sys.argv[1])
    asyncio.run(talk_on_each(sys.argv[2:]))
