"""What a client may do to the gRPC endpoint without a call."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import stat
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from itertools import chain, count, islice, repeat
from pathlib import Path

import grpc
import pytest

from antiphon.v1 import speech_pb2, speech_pb2_grpc
from antiphon_gateway.keys.credentials import GrpcPeers
from antiphon_gateway.metrics import Refused
from antiphon_gateway.serving import socket_names
from antiphon_gateway.serving.descriptors import OPEN_MAX, descriptors_needed, within_limit
from antiphon_gateway.serving.frame_meter import OTHER
from antiphon_gateway.serving.grpc_front import (
    BUDGETS,
    ClientSide,
    FrontBounds,
    GrpcFront,
    network_of,
)
from antiphon_testkit.gateway_settings import gateway_config
from tests.contract.raw_http2 import (
    DATA,
    END_HEADERS,
    HEADERS,
    PREFACE,
    SETTINGS,
    frame,
    header_block,
)
from tests.contract.served_gateway import ServedGateway, serve_gateway
from tests.own_records import lines_of, records_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

PRIORITY, RESET, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = 2, 3, 6, 7, 8, 9
ENHANCE_YOUR_CALM = 11
GENERATE = {b":path": b"/antiphon.v1.SpeechService/Generate"}
HEAD = header_block(GENERATE)
HELLO = PREFACE + frame(SETTINGS, 0, 0, b"")


@asynccontextmanager
async def connection(
    served: ServedGateway, first: bytes = b"", own: str = "127.0.0.1"
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection from the address `own` that sends something at first."""
    host, _, port = served.gateway.grpc_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(own, 0))
    try:
        writer.write(first)
        yield reader, writer
    finally:
        writer.close()


async def frames(reader: asyncio.StreamReader) -> AsyncIterator[tuple[int, bytes]]:
    """Kind and payload of each frame until the connection ends."""
    try:
        while True:
            head = await reader.readexactly(9)
            yield head[3], await reader.readexactly(int.from_bytes(head[:3]))
    except (asyncio.IncompleteReadError, ConnectionResetError):
        return


async def ask(served: ServedGateway) -> None:
    async with grpc.aio.insecure_channel(served.gateway.grpc_address) as channel:
        message = speech_pb2.Message(role="user", parts=[speech_pb2.Part(text="Hi")])
        request = speech_pb2.GenerateRequest(messages=[message])
        async for _ in speech_pb2_grpc.SpeechServiceStub(channel).Generate(
            request, wait_for_ready=True
        ):
            pass


async def test_a_connection_that_says_nothing_is_closed() -> None:
    async with serve_gateway(head_timeout_s=0.2) as served, connection(served) as (reader, _):
        assert await reader.read() == b""
        await ask(served)


@pytest.mark.parametrize("sent", [1, len(PREFACE), len(HELLO) - 1])
async def test_a_handshake_that_stops_is_cut(sent: int) -> None:
    async with (
        serve_gateway(head_timeout_s=0.2) as served,
        connection(served, HELLO[:sent]) as (reader, _),
    ):
        # Closed after the settings that a server sends by itself.
        kinds = [kind async for kind, _ in frames(reader)]
        assert set(kinds) <= {SETTINGS, GOAWAY, WINDOW_UPDATE}
        await ask(served)


async def test_one_address_has_a_bound_of_its_own() -> None:
    async with (
        serve_gateway(max_grpc_connections=4, max_grpc_connections_per_address=2) as served,
        AsyncExitStack() as stack,
    ):
        for _ in range(2):
            reader, _ = await stack.enter_async_context(connection(served, HELLO, "127.0.0.2"))
            assert (await anext(frames(reader)))[0] == SETTINGS
        async with connection(served, HELLO, "127.0.0.2") as (third, _):
            assert await third.read(1) == b""
        refused = 'antiphon_gateway_refused_total{bound="max_grpc_connections_per_address"}'
        assert await served.metric(refused) == 1
        await ask(served)


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
    ],
)
async def test_what_counts_as_one_address(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_connections_beyond_the_bound_are_closed_and_the_others_are_served() -> None:
    async with serve_gateway(max_grpc_connections=3) as served:
        async with AsyncExitStack() as stack:
            for _ in range(3):
                reader, _ = await stack.enter_async_context(connection(served, HELLO))
                assert (await anext(frames(reader)))[0] == SETTINGS
            async with connection(served, HELLO) as (fourth, _):
                assert await fourth.read(1) == b""
            refused = 'antiphon_gateway_refused_total{bound="max_grpc_connections"}'
            assert await served.metric(refused) == 1
            assert await served.metric("antiphon_gateway_grpc_connections") == 3
        await ask(served)


FLOODS: dict[str, Iterator[bytes]] = {
    # Frames without end.
    "resets": (
        frame(HEADERS, END_HEADERS, 1 + 2 * call, HEAD) + frame(RESET, 0, 1 + 2 * call, bytes(4))
        for call in count()
    ),
    "settings": repeat(frame(SETTINGS, 0, 0, bytes((0, 4, 0, 1, 0, 0)))),
    "acknowledged-settings": repeat(frame(SETTINGS, 1, 0, b"")),
    "pings": repeat(frame(PING, 0, 0, bytes(8))),
    "pongs": repeat(frame(PING, 1, 0, bytes(8))),
    "windows": repeat(frame(WINDOW_UPDATE, 0, 0, bytes((0, 0, 0, 1)))),
    "priorities": repeat(frame(PRIORITY, 0, 1, bytes(5))),
    "unknown": repeat(frame(77, 0, 0, b"")),
    "continued-headers": chain(
        [frame(HEADERS, 0, 1, HEAD)], repeat(frame(CONTINUATION, 0, 1, b"\0\1a\1b"))
    ),
    "continued-nothing": chain(
        [frame(HEADERS, 0, 1, HEAD)], repeat(frame(CONTINUATION, 0, 1, b""))
    ),
    "large-headers": (
        frame(HEADERS, 0, 1 + 2 * call, HEAD)
        + frame(CONTINUATION, END_HEADERS, 1 + 2 * call, b"\0\1a\1b" * 2_000)
        + frame(RESET, 0, 1 + 2 * call, bytes(4))
        for call in count()
    ),
    "empty-data": chain([frame(HEADERS, END_HEADERS, 1, HEAD)], repeat(frame(DATA, 0, 1, b""))),
}


@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_of_frames_ends_its_connection_alone(kind: str) -> None:
    async with (
        serve_gateway() as served,
        connection(served, HELLO, "127.0.0.2") as (reader, writer),
    ):
        reading = asyncio.create_task(reader.read())
        flood = FLOODS[kind]
        with suppress(ConnectionError):
            while not reading.done():
                writer.write(b"".join(islice(flood, 500)))
                await writer.drain()
        with suppress(ConnectionError):
            await reading
        await ask(served)
        # gRPC itself closes the connection of some.
        if kind not in ("pings", "acknowledged-settings", "empty-data"):
            assert await served.metric('antiphon_gateway_refused_total{bound="grpc_frames"}') == 1


def front_of(count: Callable[[Refused], None]) -> GrpcFront:
    bounds = FrontBounds(connections=3, per_address=4, head_s=1.0, closing_s=1.0)
    return GrpcFront(bounds, None, count, GrpcPeers())


async def test_the_longest_silent_connection_of_the_address_with_most_gives_way() -> None:
    now_s = 0.0
    counted: list[Refused] = []
    front = front_of(counted.append)

    class Client(ClientSide):
        """Without sockets."""

        def __init__(self, address: str) -> None:
            super().__init__(front, address)
            self.heard_s = now_s
            self.cut = False

        @property
        def silent_s(self) -> float:
            return now_s - self.heard_s

        def abort(self) -> None:
            self.cut = True
            front.forget(self)

    many = [Client("many") for _ in range(3)]
    assert all(map(front.admit, many))
    front.moved(many[0])
    # All have just sent something, and an address does not displace its own connections.
    assert not front.admit(Client("few"))
    now_s = 2.0
    assert not front.admit(Client("many"))
    assert front.admit(Client("few"))
    assert [each.cut for each in many] == [False, True, False]
    # Two and one: as many as the others.
    assert not front.admit(Client("few"))
    assert front.connections == 3
    assert counted == [Refused.GRPC_CONNECTIONS] * 4


async def test_connections_of_an_address_have_one_budget_of_frames() -> None:
    front = front_of(lambda _: None)
    one = front.budget_of("one")
    assert front.budget_of("other") is not one
    given = []
    for number in range(BUDGETS):
        given.append(front.budget_of(f"{number}"))
        assert front.budget_of("one") is one
    # Together with the one that was in use all the time, there are as many as there may be.
    assert all(front.budget_of(f"{number}") is given[number] for number in range(1, BUDGETS))
    assert front.budget_of("0") is not given[0]


async def test_connections_of_an_address_spend_one_budget() -> None:
    counted: list[Refused] = []
    front = front_of(counted.append)
    clients = [ClientSide(front, "one") for _ in range(2)]
    for each in clients:
        each.data_received(PREFACE + frame(77, 0, 0, b"") * OTHER.burst)
    assert counted == [Refused.GRPC_FRAMES]
    for each in clients:
        each.abort()


async def test_bytes_that_come_before_grpc_is_connected_are_kept() -> None:
    front = front_of(lambda _: None)
    with socket.socket(socket.AF_UNIX) as listener:
        # The kernel chooses an abstract name.
        listener.bind("")
        listener.listen()
        listener.setblocking(False)
        front.target = listener.getsockname()
        client = ClientSide(front, "one")
        for at in range(0, len(HELLO), 10):
            client.data_received(HELLO[at : at + 10])
        loop = asyncio.get_running_loop()
        grpc_end, _ = await loop.sock_accept(listener)
        reader, writer = await asyncio.open_connection(sock=grpc_end)
        assert await reader.readexactly(len(HELLO)) == HELLO
        client.abort()
        assert await reader.read() == b""
        writer.close()


async def test_pings_without_end_end_the_connection() -> None:
    ping = frame(PING, 0, 0, bytes(8))
    async with serve_gateway() as served, connection(served, HELLO + ping * 100) as (reader, _):
        told = [payload async for kind, payload in frames(reader) if kind == GOAWAY]
        assert int.from_bytes(told[-1][4:8]) == ENHANCE_YOUR_CALM
        await ask(served)


async def test_the_limit_of_open_files_is_raised(caplog: pytest.LogCaptureFixture) -> None:
    config = gateway_config(max_connections=100, max_grpc_connections=50)
    with open_files(512) as hard:
        assert within_limit(config) is config
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    assert not records_of(caplog, "gateway")


async def test_open_files_are_raised_to_the_maximum_of_a_system_without_a_hard_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on macOS, which rejects what it reports as its limit."""
    limits = (256, resource.RLIM_INFINITY)

    def set_limits(_: int, given: tuple[int, int]) -> None:
        nonlocal limits
        if not 0 <= given[0] <= OPEN_MAX:
            raise ValueError("current limit exceeds maximum limit")
        limits = given

    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", set_limits)
    config = gateway_config(max_connections=100, max_grpc_connections=50)
    assert within_limit(config) is config
    assert limits == (OPEN_MAX, resource.RLIM_INFINITY)
    fitted = within_limit(gateway_config(max_connections=10**6, max_grpc_connections=10**6))
    assert OPEN_MAX - 8 <= descriptors_needed(fitted) <= OPEN_MAX


async def test_calls_are_served_and_nothing_is_left_without_abstract_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A directory whose path is too long for sockets is not used; that of TMPDIR is closed to
    other users."""
    monkeypatch.setattr(socket_names, "has_abstract_names", lambda: False)
    short = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    try:
        async with serve_gateway() as served:
            await ask(served)
            assert_one_closed_socket(short)
    finally:
        os.rmdir(short)  # raises an error if anything is left
    long = tmp_path / ("d" * socket_names.MAX_PATH_BYTES)
    os.mkdir(long)
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    names = socket_names.SocketNames()
    try:
        assert names.new("server").address.startswith("/tmp/antiphon-")
    finally:
        names.close()
    assert not os.listdir(long)


def assert_one_closed_socket(place: Path) -> None:
    """A directory for this user alone, with gRPC's socket, as names of clients have gone."""
    (folder,) = place.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (server,) = folder.iterdir()
    assert len(bytes(server)) <= socket_names.MAX_PATH_BYTES
    assert server.is_socket()


async def test_connections_of_both_endpoints_fit_the_limit_of_open_files(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with open_files(512) as hard:
        config = gateway_config(max_connections=hard, max_grpc_connections=hard)
        assert descriptors_needed(config) > hard
        fitted = within_limit(config)
        assert hard - 8 <= descriptors_needed(fitted) <= hard
        assert fitted.connections.max_connections == fitted.connections.max_grpc_connections
    (warning,) = lines_of(caplog, "gateway")
    assert (
        f"gateway.connections.max_grpc_connections require {descriptors_needed(config)}" in warning
    )
    assert (
        f"using {fitted.connections.max_connections} and {fitted.connections.max_grpc_connections}"
        in warning
    )


@contextmanager
def open_files(soft: int) -> Iterator[int]:
    """A soft limit for this process; its hard one."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, before[1]), before[1]))
    try:
        yield before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
