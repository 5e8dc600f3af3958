"""Whatever comes through an endpoint, it answers, and nothing is left of it afterwards.

Some rounds of cases made from a seed; each batch is followed by a request of an honest
client. Longer by hand, and what failed again:

    pytest tests/contract/test_endpoint_fuzz.py --fuzz-seconds 600 --fuzz-seed 7
    pytest tests/contract/test_endpoint_fuzz.py --fuzz-seed 7/3/json/5
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import re
import socket
import struct
import tracemalloc
from collections import Counter
from collections.abc import Iterator

import grpc
import pytest

from antiphon.errors import InvalidArgument, NotFound, NotImplementedYet
from antiphon.v1.session_pb2 import ERROR_CODE_DATA_LOSS, SessionError
from antiphon.v1.speech_pb2 import GenerateResponse
from antiphon.values.options import Option, OptionKind
from antiphon.wire.options import option_to_proto
from antiphon.wire.status import error_from_rpc
from tests.contract.fake_stages import ROLES, THINKER
from tests.contract.fuzz_cases import Case, case_of
from tests.contract.fuzz_messages import message_of
from tests.contract.served_gateway import (
    ServedGateway,
    answering,
    serve_gateway,
    tell_anew,
    work_of,
)

CASES_IN_BATCH = {"json": 12, "form": 12, "media": 12, "headers": 12, "leaving": 12, "bulk": 8}
SPEECH_CASES_IN_BATCH = {"speech": 24, "speech_leaving": 12}
WARM_UP_ROUNDS = 2
CASES_OF_GRPC = 400
WARM_UP_CASES_OF_GRPC = 100
# The clients and the stages are in this process too. Each round sends some 8 MB, so an endpoint
# that keeps what it was sent is above this after ten.
MAX_GROWTH_BYTES = 64 << 20
# Of what a round makes, all is gone after it but what grows with use: pools, caches, series.
# A few bodies of one round are more than this.
MAX_KEPT_BYTES = 1 << 20
QUIET_S = 120.0
"""Longest wait for what must end by itself; far more than it takes."""
# The stages answer on the loop that all that is sent here keeps busy.
PATIENT = {"probe_timeout_s": QUIET_S}
OPTIONS = (
    Option("style", OptionKind.TEXT, choices=("waltz", "march")),
    Option("tempo", OptionKind.NUMBER, least=0.5, most=2.0),
    Option("sample", OptionKind.AUDIO, sample_rate_hz=24_000, max_s=1.0),
    Option("manner", OptionKind.TEXT, instructs=True),
)
_FAULT = re.compile(rb'"code": ?"(internal|data_loss)"')


class Wrong(AssertionError):
    """The endpoint did what it must not; the message names the case."""


@pytest.mark.timeout(0)
@pytest.mark.parametrize(
    ("batch", "share"),
    [(CASES_IN_BATCH, 1.0), (SPEECH_CASES_IN_BATCH, 0.3)],
    ids=["chat", "speech"],
)
async def test_endpoint_stands_whatever_comes_through_it(
    request: pytest.FixtureRequest, batch: dict[str, int], share: float
) -> None:
    seed = request.config.getoption("--fuzz-seed")
    seconds = share * request.config.getoption("--fuzz-seconds")
    until = asyncio.get_running_loop().time() + seconds
    async with serve_gateway(**PATIENT) as served:
        _let_it_take_all(served)
        # A model that reads aloud takes a chat's one user message too.
        reads_aloud = "speech" in (seed if "/" in seed else batch)
        served.gateway.fleet[THINKER].require().reads_aloud = reads_aloud
        tell_anew(served.gateway)
        if "/" in seed:
            await _run((seed,), served)
            return
        # It stays when the first recording was decoded.
        served.gateway.calls.media.decoder.processes.start()
        before = await left(served)
        number, resident = 0, 0
        while number <= WARM_UP_ROUNDS or asyncio.get_running_loop().time() < until:
            for kind, count in batch.items():
                names = tuple(f"{seed}/{number}/{kind}/{n}" for n in range(count))
                await _run(names, served)
            number += 1
            if number == WARM_UP_ROUNDS:
                resident = _resident_bytes()
                tracemalloc.start()
        where = f"seed {seed}, after {number} rounds"
        await check_left(served, before, where)
        kept = _kept_bytes()
        grown = _resident_bytes() - resident
        cases = number * sum(batch.values())
        print(f"{where}: {cases} cases, {grown / (1 << 20):.1f} MiB more, {kept >> 10} KiB kept")
        assert kept < MAX_KEPT_BYTES, f"{where}: {kept >> 10} KiB are kept"
        assert grown < MAX_GROWTH_BYTES, f"{where}: {grown >> 20} MiB more"


async def check_left(served: ServedGateway, before: tuple[Counter[str], int], where: str) -> None:
    """No calls, no more tasks and descriptors than before; what ends by itself is waited for."""
    tasks, descriptors = before
    await left(served)
    assert not served.gateway.calls._live, where
    replicas = (replica for stage in served.gateway.fleet for replica in stage)
    assert not [each.role for each in replicas if each._holders], where
    while more := _tasks() - tasks:
        # The gateway's own go on as before; what asks a stage just now will be done.
        added = [each for each in asyncio.all_tasks() if work_of(each) in more]
        ended, _ = await asyncio.wait(added, timeout=QUIET_S, return_when=asyncio.FIRST_COMPLETED)
        assert ended, f"{where}: {more}"
    # What ended last may have had some, which other threads close.
    try:
        async with asyncio.timeout(QUIET_S):
            while (await left(served))[1] > descriptors:  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{where}: more descriptors than {descriptors}") from None


def _kept_bytes() -> int:
    """What was allocated since the tracing began and is still there."""
    gc.collect()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return kept


def _let_it_take_all(served: ServedGateway) -> None:
    """Images, videos, and options of each kind."""
    told = served.gateway.fleet[THINKER].require()
    told.input_kinds.extend(("image", "video"))
    told.max_input_images = told.max_input_videos = 4
    told.options.extend(map(option_to_proto, OPTIONS))
    tell_anew(served.gateway)


@pytest.mark.timeout(0)
async def test_grpc_endpoint_stands_whatever_bytes_come_through_it(
    request: pytest.FixtureRequest,
) -> None:
    seed = request.config.getoption("--fuzz-seed").partition("/")[0]
    async with (
        serve_gateway(**PATIENT) as served,
        grpc.aio.insecure_channel(served.gateway.grpc_address) as channel,
    ):
        _let_it_take_all(served)
        method = channel.unary_stream("/antiphon.v1.SpeechService/Generate")
        await channel.channel_ready()
        served.gateway.calls.media.decoder.processes.start()
        before = await left(served)
        for number in range(CASES_OF_GRPC):
            if number == WARM_UP_CASES_OF_GRPC:
                tracemalloc.start()
            data = message_of(f"{seed}/grpc/{number}")
            said, answers = "", []
            try:
                async with asyncio.timeout(QUIET_S):
                    answers = [GenerateResponse.FromString(each) async for each in method(data)]
                said = "".join(
                    each.error.message for each in answers if not _tells_another(each.error)
                )
            except grpc.aio.AioRpcError as failure:
                error = error_from_rpc(failure)
                if not isinstance(error, InvalidArgument | NotFound | NotImplementedYet):
                    said = repr(error)
            if said:
                raise Wrong(f"{said}: seed {seed}, number {number}: {data[:500]!r}")
        assert (await served.chat()).status_code == 200
        answers.clear()
        served.fakes.reset()
        where = f"seed {seed}, after {CASES_OF_GRPC} messages"
        await check_left(served, before, where)
        kept = _kept_bytes()
        print(f"{where}: {kept >> 10} KiB kept")
        assert kept < MAX_KEPT_BYTES, f"{where}: {kept >> 10} KiB are kept"


def _tells_another(error: SessionError) -> bool:
    """Whether it says that the message claims to have what its answer does not have."""
    return error.code == ERROR_CODE_DATA_LOSS and error.field == "delivered"


async def _run(names: tuple[str, ...], served: ServedGateway) -> None:
    """Send the cases at once; afterwards an honest client is answered, and no call is left."""
    cases = [case_of(name) for name in names]
    answers = await asyncio.gather(*(_send(case, served) for case in cases))
    for name, answer in zip(names, answers, strict=True):
        if why := fault_in(answer):
            raise Wrong(f"{why}; again with --fuzz-seed {name}: {answer[:2000]!r}")
    async with asyncio.timeout(QUIET_S):
        honest = await served.chat(stream=True)
        assert honest.text.rstrip().endswith("data: [DONE]"), f"after {names}: {honest.text[:500]}"
        await served.gateway.calls.wait_idle()
        for role in ROLES:
            for session in served.fakes[role].sessions:
                await session.ended.wait()
    assert await served.metric("antiphon_gateway_in_flight") == 0
    served.fakes.reset()


async def _send(case: Case, served: ServedGateway) -> bytes:
    """Be that client; what the endpoint said."""
    host, _, port = served.gateway.http_address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    answer = b""
    # An endpoint may close on a client that has not said all, or stop listening to it.
    with contextlib.suppress(OSError):
        for piece in case.pieces:
            writer.write(piece)
            async with asyncio.timeout(QUIET_S):
                await writer.drain()
            await asyncio.sleep(case.pause_s)
        if case.half_closes:
            writer.write_eof()
    with contextlib.suppress(OSError):
        while len(answer) < case.takes:
            # A client without patience, not a wait of the test for something.
            data = await asyncio.wait_for(reader.read(1 << 16), case.patience_s)
            if not data:
                break
            answer += data
    if case.reset and not writer.transport.is_closing():
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return answer


def fault_in(answer: bytes) -> str:
    """What is wrong with the responses in an answer; empty when nothing is."""
    for status, response in _responses(answer):
        if status in (503, 504) and not _names_a_cause(response):
            return f"{status} without a cause"
        if status >= 500 and status not in (503, 504):
            return f"status {status}"
    return "a fault of the gateway in an answer" if _FAULT.search(answer) else ""


def _responses(answer: bytes) -> Iterator[tuple[int, bytes]]:
    """The status and the bytes of each response on a connection."""
    found = list(re.finditer(rb"HTTP/1\.[01] (\d{3}) [^\r]*\r\n", answer))
    starts = [each.start() for each in found]
    for each, start, end in zip(found, starts, [*starts[1:], len(answer)], strict=False):
        yield int(each[1]), answer[start:end]


def _names_a_cause(response: bytes) -> bool:
    body = response.partition(b"\r\n\r\n")[2]
    try:
        content = json.loads(body)
    except ValueError:
        return False
    return bool(content.get("error", {}).get("message") or content.get("reason"))


def _tasks() -> Counter[str]:
    """How many tasks there are of each kind of work."""
    return Counter(map(work_of, asyncio.all_tasks()))


async def left(served: ServedGateway) -> tuple[Counter[str], int]:
    """Tasks and descriptors when nothing goes on; one honest request has gone through."""
    assert (await served.chat()).status_code == 200
    await served.gateway.calls.wait_idle()
    if tasks := answering():
        await asyncio.wait(tasks, timeout=QUIET_S)
    gc.collect()
    return _tasks(), len(os.listdir("/proc/self/fd"))


def _resident_bytes() -> int:
    """Memory that this process holds, without what glibc has freed and kept."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n{}", ""),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n{}", ""),
        (b"", ""),
        (b"HTTP/1.1 500 Internal Server Error\r\n\r\n{}", "500"),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "without a cause"),
        (b'HTTP/1.1 503 Service Unavailable\r\n\r\n{"error": {"message": "down"}}', ""),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 502 Bad Gateway\r\n\r\n", "502"),
        (b'HTTP/1.1 200 OK\r\n\r\ndata: {"error": {"code": "internal"}}', "fault"),
    ],
)
def test_fuzz_sees_a_fault(answer: bytes, why: str) -> None:
    assert (why in fault_in(answer)) if why else not fault_in(answer)
