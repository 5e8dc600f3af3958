"""The load drivers against the real services: what they see is what the services did."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.errors import FailedPrecondition, InvalidArgument, Unavailable
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.load.capture import record
from antiphon_tools.load.content import Content
from antiphon_tools.load.options import read_options
from antiphon_tools.load.recording import feeds_of, write_recording
from antiphon_tools.load.result import Result
from antiphon_tools.load.target import Target, started, target_at
from antiphon_tools.load.trials import load_service
from antiphon_tools.warm.launcher import WarmLauncher

pytestmark = [pytest.mark.processes, pytest.mark.asyncio(loop_scope="module")]

ROOT = Path(__file__).parents[2]
STAGES = ("thinker", "talker", "code2wav")
FRAMES, TOKENS = 12, 8
SHORT = ("--seconds", "1.5", "--warm-up", "0.3", "--frames", str(FRAMES))
# The machine that runs the tests may be slow: whether objectives are met is not asked.
PATIENT = (*SHORT, "--reply-tokens", str(TOKENS), "--slo", "duration=60")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def target(tiny: Path) -> AsyncIterator[Target]:
    everything = started("gateway", local_deployment(tiny), lambda event: None, WarmLauncher)
    async with everything as target:
        yield target


async def loaded(target: Target, tiny: Path, service: str, *arguments: str) -> Result:
    """Load one service of the deployment."""
    options = read_options([service, "--model", str(tiny), *PATIENT, *arguments])
    place = target if service == "gateway" else target_at(service, target.stages[service])
    result = await load_service(options, place, io.StringIO())
    assert result.errors == {}
    assert result.requests.due == result.requests.succeeded > 0
    assert result.goodput == 1.0
    for role in place.stages:
        assert result.left_open[role].sessions == 0
    return result


async def test_thinker_gives_text_and_what_the_talker_needs(target: Target, tiny: Path) -> None:
    result = await loaded(target, tiny, "thinker", "--rate", "3")
    requests = result.requests.succeeded
    assert result.metrics["ttft"]
    assert result.metrics["ttft"].count == requests
    assert result.metrics["ttfa"] is None
    assert result.edges["input"].messages == requests
    assert result.edges["prompt"].messages >= requests
    tokens = result.stages["thinker"].output_positions
    # Tokens that come soon after each other share a message.
    assert requests <= result.edges["text"].messages <= tokens <= requests * TOKENS


@pytest.mark.parametrize("pace", ["real", "flat"])
async def test_talker_gives_frames_for_tokens(target: Target, tiny: Path, pace: str) -> None:
    result = await loaded(target, tiny, "talker", "--rate", "3", "--pace", pace)
    requests = result.requests.succeeded
    assert result.edges["tokens"].messages == requests * (TOKENS + 1)
    frames = result.stages["talker"].output_positions
    assert frames
    assert result.audio_s_per_s * result.measured_s == pytest.approx(frames / 12.5)


async def test_code2wav_gives_samples_for_frames_when_sessions_are_closed_loops(
    target: Target, tiny: Path
) -> None:
    result = await loaded(target, tiny, "code2wav", "--sessions", "2", "--pace", "flat")
    requests = result.requests.succeeded
    assert result.metrics["rtf"]
    assert result.stages["code2wav"].output_positions == round(
        result.audio_s_per_s * result.measured_s * 24_000
    )
    assert result.edges["codes"].messages < requests * FRAMES
    assert set(result.continuity) == {"50", "100", "200"}


async def test_code2wav_gets_its_frames_one_by_one_at_real_time(target: Target, tiny: Path) -> None:
    result = await loaded(target, tiny, "code2wav", "--rate", "2")
    assert result.edges["codes"].messages == result.requests.succeeded * FRAMES
    duration = result.metrics["duration"]
    assert duration
    assert duration.min >= (FRAMES - 1) / 12.5
    assert result.fed_late
    assert result.fed_late.count == result.requests.succeeded


@pytest.mark.parametrize("endpoint", ["http", "grpc"])
async def test_gateway_gives_text_and_audio(target: Target, tiny: Path, endpoint: str) -> None:
    result = await loaded(target, tiny, "gateway", "--rate", "2", "--endpoint", endpoint)
    requests = result.requests.succeeded
    for name in ("ttft", "ttfa", "rtf", "underrun"):
        each = result.metrics[name]
        assert each
        assert each.count == requests
    # Pieces of 16-bit audio that add up to the codec frames of the replies.
    assert 0 < result.audio_s_per_s * result.measured_s <= requests * FRAMES / 12.5
    assert set(result.processes) == {*STAGES, "gateway", "load driver"}
    assert all(each.memory_max_bytes > 0 for each in result.processes.values())
    assert set(result.stages) == (set(STAGES) if endpoint == "grpc" else set())


async def test_both_endpoints_give_the_same_audio_for_the_same_requests(
    target: Target, tiny: Path
) -> None:
    arguments = ("--rate", "2", "--seed", "3")
    seconds = [
        result.audio_s_per_s
        for endpoint in ("http", "grpc")
        for result in [await loaded(target, tiny, "gateway", *arguments, "--endpoint", endpoint)]
    ]
    assert seconds[0] == seconds[1] > 0


async def test_recorded_chunks_make_a_stage_do_the_same_again(
    target: Target, tiny: Path, tmp_path: Path
) -> None:
    path = tmp_path / "run.chunks"
    content = Content(reply_tokens=TOKENS, frames=FRAMES)
    chunks = await record(target.stages, content, 2, timeout_s=60)
    assert write_recording(path, chunks) == len(chunks)
    for role, edges in (("talker", ("prompt", "tokens")), ("code2wav", ("codes",))):
        sent = [len(feed) for feed in feeds_of(path, edges)]
        assert len(sent) == 2
        arguments = ("--replay", str(path), "--rate", "3", "--warm-up", "0")
        result = await loaded(target, tiny, role, *arguments)
        moved = sum(result.edges[edge].messages for edge in edges)
        assert moved == sum(sent[number % 2] for number in range(result.requests.succeeded))


async def test_a_load_that_can_only_be_refused_is_not_begun(target: Target, tiny: Path) -> None:
    arguments = [*PATIENT, "--rate", "4", "--voice", "nobody", "--model", str(tiny)]
    options = read_options(["talker", *arguments])
    place = target_at("talker", target.stages["talker"])
    with pytest.raises(InvalidArgument, match="unknown voice 'nobody'"):
        await load_service(options, place, io.StringIO())


@pytest.mark.parametrize(
    ("service", "at", "words"),
    [
        ("talker", "gateway", "is a gateway, not a talker"),
        ("code2wav", "talker", "is a talker, not a code2wav"),
        ("gateway", "talker", "is a talker, not a gateway"),
        ("nothing", "talker", "is a talker, not a nothing; qwen3_omni has code2wav, talker, th"),
    ],
)
async def test_target_of_another_kind_is_named(
    target: Target, tiny: Path, service: str, at: str, words: str
) -> None:
    address = target.grpc_address if at == "gateway" else target.stages[at]
    options = read_options([service, *PATIENT, "--target", address, "--model", str(tiny)])
    with pytest.raises(FailedPrecondition, match=f"{address} {words}"):
        await load_service(options, target_at(service, address), io.StringIO())


async def test_talker_at_a_target_needs_the_checkpoint_or_a_recording(target: Target) -> None:
    address = target.stages["talker"]
    options = read_options(["talker", *PATIENT, "--target", address])
    with pytest.raises(FailedPrecondition, match="special token IDs"):
        await load_service(options, target_at("talker", address), io.StringIO())


async def test_http_target_that_is_no_gateway_is_named() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        options = read_options(["gateway", *PATIENT, "--target", url])
        with pytest.raises(FailedPrecondition, match=f"{url} did not list models like a gateway"):
            await load_service(options, target_at("gateway", url), io.StringIO())


async def test_target_where_nothing_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    options = read_options(["code2wav", *PATIENT, "--target", address])
    with pytest.raises(Unavailable, match=f"no gRPC service responded at {address}"):
        await load_service(options, target_at("code2wav", address), io.StringIO())


async def test_command_fails_when_a_request_fails(target: Target, tiny: Path) -> None:
    # Nobody answers within a millisecond.
    arguments = ("--timeout", "0.001", "--target", target.stages["code2wav"], *SHORT, "--rate", "9")
    ran = await command("code2wav", *arguments)
    assert ran.returncode == 1, ran.stdout + ran.stderr
    assert "deadline_exceeded" in ran.stdout
    assert "requests failed, so the exit status is 1" in ran.stdout


async def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m antiphon_tools.load` to its end."""
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "antiphon_tools.load", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )


async def test_a_capacity_is_found_when_even_little_is_carried(target: Target, tiny: Path) -> None:
    arguments = ("--sessions", "1", "--find-capacity", "--max-trials", "2", "--pace", "flat")
    result = await loaded(target, tiny, "code2wav", *arguments)
    assert result.capacity
    assert [each.load for each in result.capacity.trials] == [1, 2]
    assert result.capacity.load == 2
    assert not result.capacity.bounded


async def test_command_starts_a_stage_loads_it_and_saves_what_it_shows(
    tiny: Path, tmp_path: Path
) -> None:
    json_path, html_path = tmp_path / "result.json", tmp_path / "result.html"
    files = ("--json", str(json_path), "--html", str(html_path))
    ran = await command("code2wav", "--model", str(tiny), *SHORT, "--rate", "3", *files)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "code2wav | exited with status 0" in ran.stdout
    result = json.loads(json_path.read_bytes())
    assert result["requests"]["due"] == result["requests"]["succeeded"] > 0
    (shown,) = (line.split() for line in ran.stdout.splitlines() if line.startswith("  due "))
    assert shown == ["due", str(result["requests"]["due"])]
    assert set(result["processes"]) == {"code2wav", "load driver"}
    assert [each["metric"] for each in result["objectives"]] == ["ttfa", "underrun"]
    for name in ("commit", "machine", "load average at start", "load average at end"):
        assert result["settings"][name] in html_path.read_text()
    assert html_path.read_text().startswith("<!doctype html>")
