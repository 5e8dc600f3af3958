"""Connections without requests in a gateway's process that may open few files."""

from __future__ import annotations

import asyncio
import json
import resource
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

import antiphon
from antiphon.deployment.schema import dump_deployment
from antiphon.deployment.tls_config import TlsConfig
from antiphon_testkit.certificates import Certificates, make_certificates
from tests.contract.fake_stages import FakeStages
from tests.contract.gateway_process import gateway_process
from tests.contract.raw_http2 import PREFACE, SETTINGS, frame
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

FILES = 1_024
SILENT, REQUESTS = 3_000, 40
ATTACKERS = ("127.0.0.2", "127.0.0.3")
"""Addresses of the attackers; honest clients have another one."""
HELLO = PREFACE + frame(SETTINGS, 0, 0, b"")


@contextmanager
def many_files() -> Iterator[None]:
    """Let this process open as many files as it may."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@dataclass(frozen=True, slots=True)
class Site:
    """A gateway's process and its clients' certificates."""

    process: asyncio.subprocess.Process
    http: str
    grpc: str
    made: Certificates | None

    @property
    def url(self) -> str:
        return f"http{'s' if self.made else ''}://{self.http}"

    @property
    def trust(self) -> ssl.SSLContext | bool:
        return ssl.create_default_context(cafile=self.made.authority) if self.made else False

    async def chat(self) -> None:
        """A spoken answer on a connection of its own."""
        async with httpx.AsyncClient(base_url=self.url, verify=self.trust, timeout=240) as http:
            body: dict[str, Any] = {"model": MODEL, "messages": MESSAGES, **SPOKEN}
            answer = await http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text

    async def generate(self) -> None:
        """The same over gRPC."""
        tls = antiphon.Tls(self.made.authority) if self.made else False
        async with antiphon.AsyncClient(self.grpc, tls=tls) as client:
            assert (await client.generate("Hi").collect()).pcm16

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@asynccontextmanager
async def site(tmp_path: Path, *, tls: bool, **settings: Any) -> AsyncIterator[Site]:
    made = make_certificates(tmp_path) if tls else None
    if made:
        files = TlsConfig(certificate_file=str(made.server), key_file=str(made.server_key))
        settings["tls"] = files
    config = tmp_path / "deployment.yaml"
    async with FakeStages() as fakes:
        config.write_bytes(dump_deployment(deployment_of(fakes, max_waiting=64, **settings)))
        running = gateway_process(config, "--log-level", "error", files=FILES)
        async with running as (process, announced):
            listening = json.loads(await announced.readline())
            assert json.loads(await announced.readline())["event"] == "ready"
            yield Site(process, listening["http"], listening["grpc"], made)


@asynccontextmanager
async def silence(address: str, first: bytes = b"") -> AsyncIterator[list[asyncio.Transport]]:
    """Connections of attackers that send `first` and nothing more."""
    loop = asyncio.get_running_loop()
    host, _, port = address.rpartition(":")
    opened: list[asyncio.Transport] = []
    try:
        for number in range(SILENT):
            transport, _ = await loop.create_connection(
                asyncio.Protocol,
                host,
                int(port),
                local_addr=(ATTACKERS[number % len(ATTACKERS)], 0),
            )
            transport.write(first)
            opened.append(transport)
        yield opened
    finally:
        for each in opened:
            each.abort()


@pytest.mark.parametrize(
    ("attacked", "tls", "first"),
    [
        ("grpc", False, b""),
        ("grpc", False, HELLO),
        ("grpc", True, b""),
        ("http", False, b""),
        ("http", True, b""),
        ("http", True, b"\x16\x03\x01\x02\x00\x01"),
    ],
    ids=["grpc", "grpc-settings", "grpc-tls", "http", "http-tls", "http-half-a-hello"],
)
async def test_silent_connections_leave_both_endpoints_working(
    attacked: str, tls: bool, first: bytes, tmp_path: Path
) -> None:
    with many_files():
        # No time frees what is silent.
        async with site(tmp_path, tls=tls, head_timeout_s=600.0) as running:
            await running.generate()
            async with silence(getattr(running, attacked), first):
                for _ in range(REQUESTS):
                    await running.chat()
                await running.generate()
                assert running.open_files() < FILES


async def test_tls_connections_are_served_one_after_another(tmp_path: Path) -> None:
    async with site(tmp_path, tls=True) as running:
        assert running.made is not None
        credentials = grpc.ssl_channel_credentials(running.made.authority.read_bytes())
        address = running.grpc.replace("127.0.0.1", "localhost")
        for _ in range(100):
            async with grpc.aio.secure_channel(
                address, credentials, [("grpc.use_local_subchannel_pool", 1)]
            ) as channel:
                check = channel.unary_unary("/grpc.health.v1.Health/Check")
                # One attempt.
                assert await check(b"")
