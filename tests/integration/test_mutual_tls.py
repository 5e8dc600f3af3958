"""Services that prove themselves to each other, as real processes."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
from msgspec.structs import replace

import antiphon
from antiphon.deployment.tls_config import MutualTlsConfig
from antiphon.errors import InvalidArgument, Unavailable
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.transport.mutual_tls import ServiceTls
from antiphon.v1 import stage_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.certificates import make_service_certificates
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.load.options import read_options
from antiphon_tools.load.result import LeftOpen
from antiphon_tools.load.target import target_at
from antiphon_tools.load.trials import load_service
from antiphon_tools.warm.launcher import WarmLauncher

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

STAGES = ("thinker", "talker", "code2wav")
SERVICES = (*STAGES, "gateway", "stranger", "load-test")
TIMEOUT_S = 120.0


@dataclass
class Proved:
    """A deployment of which every service has a certificate."""

    running: Running
    settings: MutualTlsConfig
    folder: Path

    def channel(self, name: str, to: str, *, told: str = "") -> grpc.aio.Channel:
        """What the service of that name opens to a stage, which it takes for another if told."""
        address = self.running.processes[to].address
        return ServiceTls(self.settings, name).channel(address, told or to, CHANNEL_OPTIONS)

    async def describe(self, name: str, to: str, *, told: str = "") -> grpc.StatusCode:
        """How a service's question ends."""
        async with self.channel(name, to, told=told) as channel:
            try:
                await stage_stub(channel).Describe(stage_pb2.DescribeRequest(), timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError as error:
                return error.code()
        return grpc.StatusCode.OK


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proved(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Proved]:
    folder = tmp_path_factory.mktemp("certificates")
    settings = make_service_certificates(folder, SERVICES)
    settings = replace(settings, operators=("load-test.antiphon",))
    deployment = replace(local_deployment(tiny), mutual_tls=settings)
    async with WarmLauncher(deployment, on_exit="restart") as running:
        yield Proved(running, settings, folder)


async def test_services_that_prove_themselves_answer(proved: Proved) -> None:
    patient = antiphon.Retry(attempts=100, within_s=300.0, longest_pause_s=1.0)
    async with antiphon.AsyncClient(proved.running.grpc_address, retry=patient) as client:
        reply = await client.generate("Hello", temperature=0.0, max_tokens=6).collect()
    assert reply.audio_s > 0


async def test_a_load_test_shows_a_stage_its_certificate(proved: Proved) -> None:
    address = proved.running.processes["thinker"].address
    paths = [
        each.format(role="load-test")
        for each in (proved.settings.authority_file, proved.settings.certificate_file)
    ]
    shown = ["--tls", paths[0], "--certificate", paths[1]]
    shown += ["--key", proved.settings.key_file.format(role="load-test")]
    few = ["--sessions", "1", "--seconds", "0.1", "--warm-up", "0", "--reply-tokens", "4"]
    options = read_options(["thinker", "--target", address, *few, *shown])
    result = await load_service(options, target_at("thinker", address), io.StringIO())
    assert result.requests.succeeded == result.requests.due > 0
    assert result.left_open["thinker"] == LeftOpen(0, 0), "it was asked for its state, too"
    nameless = read_options(["thinker", "--target", address, *few, "--tls", paths[0]])
    with pytest.raises(Unavailable):
        await load_service(nameless, target_at("thinker", address), io.StringIO())


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("gateway", grpc.StatusCode.OK),
        ("load-test", grpc.StatusCode.OK),
        ("talker", grpc.StatusCode.UNAUTHENTICATED),
        ("stranger", grpc.StatusCode.UNAUTHENTICATED),
    ],
)
async def test_the_gateway_and_operators_alone_may_ask(
    proved: Proved, name: str, code: grpc.StatusCode
) -> None:
    assert await proved.describe(name, "thinker") is code


async def test_who_is_not_who_it_should_be_is_not_asked(proved: Proved) -> None:
    assert await proved.describe("gateway", "talker", told="thinker") is (
        grpc.StatusCode.UNAVAILABLE
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("talker", grpc.StatusCode.OK),
        ("thinker", grpc.StatusCode.UNAUTHENTICATED),
        ("gateway", grpc.StatusCode.UNAUTHENTICATED),
    ],
)
async def test_chunks_come_from_the_stage_before_alone(
    proved: Proved, name: str, code: grpc.StatusCode
) -> None:
    async with proved.channel(name, "code2wav") as channel:
        link = stage_stub(channel).Link(timeout=TIMEOUT_S)
        try:
            # Who is refused is, before it says anything. A write would race with that: one to a
            # call that has ended makes its status INTERNAL.
            if code is grpc.StatusCode.OK:
                hello = stage_pb2.LinkHello(link_id="test", host_id="h", boot_id="b", role=name)
                await link.write(stage_pb2.LinkRequest(hello=hello))
            answer = await link.read()
            got = grpc.StatusCode.OK if isinstance(answer, stage_pb2.LinkResponse) else None
        except grpc.aio.AioRpcError as error:
            got = error.code()
        link.cancel()
    assert got is code


async def test_nobody_is_answered_who_shows_no_certificate(proved: Proved) -> None:
    address = proved.running.processes["thinker"].address
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError):
            await stage_stub(channel).Describe(stage_pb2.DescribeRequest(), timeout=TIMEOUT_S)


async def test_a_renewed_certificate_is_shown_without_a_restart(proved: Proved) -> None:
    """All are renewed at once, by another authority: new connections are as good as old ones."""

    async def shown() -> bytes | None:
        context = ssl.create_default_context(cafile=str(proved.folder / "authority.pem"))
        context.load_cert_chain(proved.folder / "gateway.pem", proved.folder / "gateway.key")
        context.set_alpn_protocols(["h2"])
        host, port = proved.running.processes["talker"].address.split(":")
        _, writer = await asyncio.open_connection(
            host, int(port), ssl=context, server_hostname="talker.antiphon"
        )
        connection: ssl.SSLObject = writer.get_extra_info("ssl_object")
        writer.close()
        return connection.getpeercert(binary_form=True)

    before = await shown()
    await asyncio.to_thread(make_service_certificates, proved.folder, SERVICES)
    assert await shown() != before
    assert await proved.describe("gateway", "talker") is grpc.StatusCode.OK
    # The gateway has known another authority when it connected to the one before.
    os.kill(proved.running.processes["talker"].pid, signal.SIGKILL)
    await test_services_that_prove_themselves_answer(proved)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("certificate_file", "missing.pem"),
        ("key_file", "{role}.pem"),
        ("authority_file", "{role}.key"),
    ],
)
async def test_wrong_files_are_named(proved: Proved, field: str, value: str) -> None:
    wrong = replace(proved.settings, **{field: str(proved.folder / value)})
    with pytest.raises(InvalidArgument) as refused:
        ServiceTls(wrong, "talker")
    assert field in refused.value.field
