"""What a stage reports at its metrics endpoint: before, during, after a call, after its end."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import antiphon
from antiphon import SamplingRequest
from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument, Unavailable
from antiphon.runtime.server.metrics_endpoint import metrics_endpoint
from antiphon.version import VERSION
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.metrics_page import Page, read_page

ROLES = ("thinker", "talker", "code2wav")
OUTPUTS = {
    "thinker": ("prompt", "tokens", "text", "tool_calls"),
    "talker": ("codes",),
    "code2wav": ("audio",),
}
processes = pytest.mark.processes
# The talker of the checkpoint never draws its end, and a client that does not read takes
# 30 s ahead of these 320 s: the call is in its midst whenever the test says it is.
LONG = {"talker": SamplingRequest(temperature=0.0, max_tokens=4000)}
SHORT = {"talker": SamplingRequest(temperature=0.0, max_tokens=30)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def talking(talkative: Path) -> AsyncIterator[Running]:
    deployment = local_deployment(talkative, thinker=StageConfig(context_limit=512))
    async with WarmLauncher(deployment, metrics=True) as running:
        yield running


async def pages(running: Running) -> dict[str, Page]:
    return {role: await read_page(running.processes[role].metrics_url) for role in ROLES}


async def pages_when_free(running: Running) -> dict[str, Page]:
    """The pages when no stage has a session; stages are told by a message that may be under way."""
    for _ in range(1000):
        told = await pages(running)
        if not any(page("antiphon_stage_open_sessions") for page in told.values()):
            return told
        await asyncio.sleep(0.01)
    raise AssertionError("sessions do not end")


@processes
@pytest.mark.asyncio(loop_scope="module")
async def test_series_follow_a_call_from_its_beginning_to_its_end(talking: Running) -> None:
    before = await pages_when_free(talking)
    for role, page in before.items():
        (info,) = page.all("antiphon_stage_info")
        assert info.labels["stage"] == role
        assert info.labels["engine"]
        assert (info.labels["device"], info.labels["model"]) == ("cpu", "talkative")
        assert info.labels["version"] == VERSION
        assert page("antiphon_stage_ready") == 1
        assert page("antiphon_stage_slots") == 16
        assert page("process_resident_memory_bytes") > 0
        edges = {each.labels["edge"] for each in page.all("antiphon_stage_output_chunks_total")}
        assert edges == set(OUTPUTS[role])
    async with antiphon.AsyncClient(talking.grpc_address) as client:
        speaking = client.generate("day one", max_tokens=200, sampling=LONG)
        async for event in speaking:
            if isinstance(event, antiphon.AudioDelta):
                break
        during = await pages(talking)
        assert [page("antiphon_stage_open_sessions") for page in during.values()] == [1, 1, 1]
        for role in ("talker", "code2wav"):
            grown = [
                (series, during[role](series), before[role](series))
                for series in (
                    "antiphon_stage_open_segments",
                    "antiphon_stage_output_chunks_total",
                    "antiphon_stage_output_positions_total",
                    "antiphon_stage_step_seconds_count",
                    "antiphon_stage_step_seconds_sum",
                    "antiphon_stage_step_segments_sum",
                )
            ]
            assert all(now > then for _, now, then in grown), grown
        to_code2wav = {"stage": "talker", "peer_role": "code2wav", "peer": "code2wav"}
        assert during["talker"]("antiphon_link_connected", **to_code2wav) == 1
        assert during["talker"]("antiphon_link_messages_total", **to_code2wav) > 0
        # A link is told by its producer alone.
        assert not during["code2wav"].begin_with("antiphon_link_")
        speaking.cancel()
        with pytest.raises(antiphon.AntiphonError):
            async for _ in speaking:
                pass
        cancelled = await pages_when_free(talking)
        await client.generate("Hello", max_tokens=8, sampling=SHORT).collect()
    finished = await pages_when_free(talking)
    segments = "antiphon_stage_segments_total"
    for role in ROLES:
        then, middle, now = (
            {
                each: told[role](segments, outcome=each)
                for each in ("finished", "cancelled", "failed")
            }
            for told in (before, cancelled, finished)
        )
        # The thinker had perhaps finished when its call was cancelled.
        ended = {"finished": 0, "cancelled": 1, "failed": 0}
        if role != "thinker":
            assert middle == {each: then[each] + ended[each] for each in then}
        assert sum(middle.values()) == sum(then.values()) + 1
        assert now == middle | {"finished": middle["finished"] + 1}
        steps = "antiphon_stage_step_segments"
        assert finished[role](f"{steps}_bucket", le="+Inf") == finished[role](f"{steps}_count")
        assert finished[role](f"{steps}_sum") >= finished[role](f"{steps}_count") > 0
    samples = finished["code2wav"]("antiphon_stage_output_positions_total", edge="audio")
    assert samples > cancelled["code2wav"]("antiphon_stage_output_positions_total", edge="audio")


@processes
@pytest.mark.asyncio(loop_scope="module")
async def test_failure_is_counted_with_its_code(talking: Running) -> None:
    labels = {"outcome": "failed", "code": "invalid_argument"}
    url = talking.processes["thinker"].metrics_url
    before = (await read_page(url))("antiphon_stage_segments_total", **labels)
    async with antiphon.AsyncClient(talking.grpc_address) as client:
        with pytest.raises(antiphon.AntiphonError):
            await client.generate("word " * 2000, modalities=("text",)).collect()
    assert (await read_page(url))("antiphon_stage_segments_total", **labels) == before + 1


@processes
@pytest.mark.parametrize(
    ("listen", "words"),
    [
        ("9464", "metrics_listen: '9464' is not HOST:PORT"),
        ("127.0.0.1:{taken}", "metrics_listen: 127.0.0.1:{taken}: Address already in use"),
    ],
)
def test_stage_ends_with_the_reason_when_its_metrics_address_is_wrong(
    tiny: Path, listen: str, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        options = ("--model", str(tiny), "--metrics-listen", listen.format(taken=taken))
        ended = subprocess.run(
            [sys.executable, "-m", "antiphon_services", "code2wav", *options],
            capture_output=True,
            text=True,
            check=False,
        )
    assert ended.returncode == 2
    assert ended.stderr == f"code2wav: {words.format(taken=taken)}\n"


class Slow(Collector):
    """A page that is read only when it may be."""

    def __init__(self) -> None:
        self.asked, self.may = threading.Event(), threading.Event()

    def collect(self) -> Iterator[Metric]:
        self.asked.set()
        assert self.may.wait(60)
        yield GaugeMetricFamily("slow", "Slow", value=1)


async def test_endpoint_does_not_hold_up_the_loop_and_is_shut_at_its_end() -> None:
    slow = Slow()
    async with metrics_endpoint("127.0.0.1:0", slow) as address:
        reading = asyncio.create_task(read_page(f"http://{address}/metrics"))
        # The loop runs while a scrape is held up on its own thread.
        assert await asyncio.to_thread(slow.asked.wait, 60)
        slow.may.set()
        page = await reading
        assert page("slow") == 1
        assert page("python_info") == 1
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"http://{address}/metrics")


async def test_endpoint_is_closed_when_nobody_asked_for_one() -> None:
    # Threads of earlier tests may end now.
    before = set(threading.enumerate())
    async with metrics_endpoint("", Slow()) as address:
        assert address == ""
        assert set(threading.enumerate()) <= before


@pytest.mark.parametrize("listen", ["9464", ":9464", "127.0.0.1:metrics", "127.0.0.1:65536"])
async def test_endpoint_refuses_what_is_no_address(listen: str) -> None:
    with pytest.raises(InvalidArgument, match="metrics_listen") as caught:
        async with metrics_endpoint(listen, Slow()):
            pytest.fail("it opened")
    assert caught.value.field == "metrics_listen"


async def test_endpoint_says_why_an_address_cannot_be_had() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(Unavailable, match=f"metrics_listen: {listen}: .*in use"):
            async with metrics_endpoint(listen, Slow()):
                pytest.fail("it opened")
