from __future__ import annotations

import asyncio
import json
import logging
import signal
import time
from pathlib import Path
from typing import Any

import grpc
import httpx
import openai
import pytest

from antiphon.deployment.schema import Deployment, StageConfig, dump_deployment
from antiphon.errors import InvalidArgument, Unavailable
from antiphon.version import VERSION
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import ROLES, TALKER, THINKER, FakeStages, Session
from tests.contract.gateway_process import gateway_process
from tests.contract.served_gateway import (
    MESSAGES,
    MODEL,
    SPOKEN,
    ServedGateway,
    deployment_of,
    serve_gateway,
)
from tests.own_records import lines_of

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def hang(session: Session) -> None:
    await session.opened()
    await session.text("begun")
    await asyncio.Event().wait()


async def test_models_lists_the_served_model(served: ServedGateway) -> None:
    models = await served.openai.models.list()
    assert models.data[0].id == MODEL
    retrieved = await served.openai.models.retrieve(MODEL)
    assert retrieved.id == MODEL
    told = retrieved.to_dict()
    assert told["voices"] == ["chelsie", "ethan"]
    assert (told["context_limit"], told["max_model_len"]) == (4096, 4096)
    assert told["reads_aloud"] is False
    assert {"mp3", "opus", "flac", "wav", "pcm"} <= set(told["audio_formats"])
    assert 0 <= time.time() - retrieved.created < 24 * 3600
    with pytest.raises(openai.NotFoundError):
        await served.openai.models.retrieve("other")


async def test_voices_are_listed_as_chat_front_ends_read_them(served: ServedGateway) -> None:
    listed = (await served.http.get("/v1/audio/voices")).json()["voices"]
    assert listed == [{"id": name, "name": name} for name in ("chelsie", "ethan")]
    assert (await served.http.get("/v1/audio/voices", params={"model": MODEL})).json()["voices"]
    missing = await served.http.get("/v1/audio/voices", params={"model": "other"})
    assert (missing.status_code, missing.json()["error"]["param"]) == (404, "model")


async def test_version_is_told(served: ServedGateway) -> None:
    assert (await served.http.get("/version")).json() == {"version": VERSION}


async def test_health_tells_each_stage(served: ServedGateway) -> None:
    response = await served.http.get("/health")
    assert response.status_code == 200
    assert response.json() == {
        "ready": True,
        "reason": "",
        "outputs": {"text": True, "audio": True},
        "stages": {
            role: {"address": served.fakes[role].address, "ready": True, "reason": ""}
            for role in ROLES
        },
    }


async def test_health_is_a_503_with_the_reason_when_a_stage_is_down() -> None:
    async with serve_gateway() as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        await served.fakes[TALKER].die()
        assert not await anext(ready)
        await ready.aclose()
        response = await served.http.get("/health")
        assert response.status_code == 503
        stages = response.json()["stages"]
        assert [stages[role]["ready"] for role in ROLES] == [True, False, True]
        assert stages[TALKER]["reason"]
        assert response.json()["outputs"] == {"text": True, "audio": False}
        assert (await served.chat()).status_code == 200
        assert (await served.chat(**SPOKEN)).status_code == 503
        for output, status in (("text", 200), ("audio", 503), ("smell", 503)):
            assert (await served.http.get(f"/health?output={output}")).status_code == status
        unknown = (await served.http.get("/health?output=smell")).json()
        assert (unknown["ready"], unknown["reason"]) == (
            False,
            "output: 'smell' is not an output of the model; use one of: text, audio",
        )
        assert await served.metric(f'antiphon_gateway_stage_ready{{stage="{TALKER}"}}') == 0
        assert await served.metric(f'antiphon_gateway_stage_ready{{stage="{THINKER}"}}') == 1


async def test_health_tells_no_output_when_what_all_need_is_down() -> None:
    async with serve_gateway() as served:
        ready = served.gateway.fleet.readiness()
        assert await anext(ready)
        await served.fakes[THINKER].die()
        assert not await anext(ready)
        await ready.aclose()
        outputs = (await served.http.get("/health")).json()["outputs"]
    assert outputs == {"text": False, "audio": False}


async def test_health_tells_when_another_role_answers() -> None:
    async with FakeStages() as fakes:
        fakes[TALKER].description.role = "drummer"
        async with Gateway(deployment_of(fakes)) as gateway:
            ready = gateway.fleet.readiness()
            while "drummer" not in gateway.fleet[TALKER].reason:
                await gateway.fleet.wait_changed()
            assert not await anext(ready)
            await ready.aclose()


async def test_metrics_count_requests_errors_and_audio() -> None:
    async with serve_gateway() as served:
        await served.chat(**SPOKEN)
        await served.chat(model="other")
        await served.gateway.calls.wait_idle()
        ok = 'antiphon_gateway_requests_total{api="http",status="200"}'
        wrong = 'antiphon_gateway_requests_total{api="http",status="404"}'
        assert (await served.metric(ok), await served.metric(wrong)) == (1, 1)
        error = 'antiphon_gateway_errors_total{code="not_found",stage=""}'
        assert await served.metric(error) == 1
        audio_s = await served.metric('antiphon_gateway_audio_seconds_total{api="http"}')
        assert audio_s == pytest.approx((6 * 1920 - 555) / 24_000)
        for name in ("ttft_seconds", "ttfa_seconds", "rtf_ratio"):
            assert await served.metric(f'antiphon_gateway_{name}_count{{api="http"}}') == 1
        assert await served.metric("antiphon_gateway_in_flight") == 0


async def test_requests_beyond_the_limit_are_a_429() -> None:
    async with serve_gateway(max_calls=1) as served:
        served.fakes[THINKER].script = hang
        async with served.http.stream(
            "POST",
            "/v1/chat/completions",
            json={"model": MODEL, "messages": MESSAGES, "stream": True},
        ) as running:
            assert running.status_code == 200
            assert await served.metric("antiphon_gateway_in_flight") == 1
            refused = await served.chat()
            assert refused.status_code == 429
            assert refused.headers["retry-after"] == "1"
            error = refused.json()["error"]
            assert (error["type"], error["code"]) == ("rate_limit_error", "resource_exhausted")
        await served.gateway.calls.wait_idle()
        served.fakes.reset()
        assert (await served.chat()).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1/nothing", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/health", 405)],
)
async def test_unknown_paths_and_methods_are_errors_of_openai(
    served: ServedGateway, method: str, path: str, status: int
) -> None:
    response = await served.http.request(method, path)
    assert response.status_code == status
    assert path in response.json()["error"]["message"]


async def test_every_response_has_its_own_request_id(served: ServedGateway) -> None:
    responses = [
        await served.chat(),
        await served.chat(messages=[]),
        await served.http.get("/nothing"),
    ]
    ids = {response.headers["x-request-id"] for response in responses}
    assert len(ids) == 3


async def test_a_clients_request_id_is_kept_when_it_may_stand_in_a_log(
    served: ServedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/v1/models", "/nothing"):
        kept = await served.http.get(path, headers={"x-request-id": "job-7.a_b"})
        assert kept.headers["x-request-id"] == "job-7.a_b"
    assert json.loads(lines_of(caplog, "gateway.requests")[-1])["id"] == "job-7.a_b"
    for wrong in ("", "x" * 129, "two words", 'a"b', "\xe9"):
        made = await served.http.get(
            "/v1/models", headers=[(b"x-request-id", wrong.encode("latin-1"))]
        )
        assert made.headers["x-request-id"].startswith("req_")


async def test_files_of_the_page_are_logged_for_debugging_alone(
    served: ServedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="gateway.requests")
    caplog.clear()
    for path in ("/", "/page/app.js", "/page/none.js", "/v1/models"):
        await served.http.get(path)
    records = [each for each in caplog.records if each.name == "gateway.requests"]
    named = {json.loads(each.getMessage())["request"]: each.levelname for each in records}
    assert named == {
        "GET /": "DEBUG",
        "GET /page/app.js": "DEBUG",
        "GET /page/none.js": "INFO",
        "GET /v1/models": "INFO",
    }


async def test_answers_have_ids_of_their_own_when_a_request_id_comes_again(
    served: ServedGateway,
) -> None:
    body = {"model": MODEL, "messages": MESSAGES}
    headers = {"x-request-id": "again"}
    answers = [
        await served.http.post("/v1/chat/completions", json=body, headers=headers) for _ in range(2)
    ]
    assert len({answer.json()["id"] for answer in answers}) == 2


async def test_a_405_tells_what_is_allowed(served: ServedGateway) -> None:
    assert (await served.http.get("/v1/chat/completions")).headers["allow"] == "POST"
    allowed = (await served.http.post("/v1/models")).headers["allow"]
    assert set(allowed.split(", ")) == {"GET", "HEAD"}


async def test_models_are_listed_with_a_slash_too(served: ServedGateway) -> None:
    listed, again = await served.http.get("/v1/models"), await served.http.get("/v1/models/")
    assert (again.status_code, again.json()) == (200, listed.json())


@pytest.mark.parametrize("stream", [True, False])
async def test_the_log_has_one_line_per_request_without_what_was_said(
    served: ServedGateway, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    caplog.clear()
    response = await served.chat(
        messages=[{"role": "user", "content": "secret words"}], stream=stream
    )
    await served.gateway.calls.wait_idle()
    await served.http.get("/health")
    # Requests of earlier tests may end, and be logged, as late as now.
    lines = [json.loads(each) for each in lines_of(caplog, "gateway.requests")]
    (line,) = [each for each in lines if each["id"] == response.headers["x-request-id"]]
    assert "error" not in line
    assert (line["status"], line["prompt_tokens"], line["completion_tokens"]) == ("200", 20, 5)
    assert line["session"] == served.fakes[THINKER].sessions[0].opening.session_id
    assert not any("secret" in r.getMessage() or "Hello" in r.getMessage() for r in caplog.records)


async def test_running_requests_are_ended_with_unavailable_at_shutdown() -> None:
    begun = asyncio.Event()

    async def begin(session: Session) -> None:
        begun.set()
        await hang(session)

    async with FakeStages() as fakes:
        fakes[THINKER].script = begin
        async with Gateway(deployment_of(fakes, drain_s=0.05)) as gateway:
            await gateway.wait_ready()
            client = httpx.AsyncClient(base_url=f"http://{gateway.http_address}", timeout=10)
            body = {"model": MODEL, "messages": MESSAGES, "stream": True}
            asking = asyncio.create_task(client.post("/v1/chat/completions", json=body))
            await begun.wait()
        response = await asking
        await client.aclose()
        await fakes[THINKER].sessions[0].cancelled.wait()
    last = response.text.rstrip().split("\n\n")[-1].removeprefix("data: ")
    assert json.loads(last)["error"]["message"] == "the gateway is shutting down"


async def test_gateway_refuses_to_start_when_an_address_is_wrong_or_taken(
    served: ServedGateway,
) -> None:
    fakes = served.fakes
    with pytest.raises(InvalidArgument, match="http_listen"):
        Gateway(deployment_of(fakes, http_listen="nowhere"))
    with pytest.raises(InvalidArgument, match="stages"):
        Gateway(Deployment())
    with pytest.raises(InvalidArgument, match=r"stages\.talker\.addresses"):
        Gateway(Deployment(stages={"talker": StageConfig()}))
    taken = Gateway(deployment_of(fakes, http_listen=served.gateway.http_address))
    with pytest.raises(Unavailable, match="http_listen"):
        await taken.__aenter__()


async def test_addresses_of_ipv6_have_the_brackets_that_clients_need() -> None:
    here = "[::1]:0"
    async with FakeStages() as fakes:
        listen = {"http_listen": here, "grpc_listen": here, "scaler_listen": here}
        async with Gateway(deployment_of(fakes, **listen)) as gateway:
            assert gateway.scaler is not None
            for address in (gateway.grpc_address, gateway.scaler.address):
                async with grpc.aio.insecure_channel(address) as channel:
                    await channel.channel_ready()
            async with httpx.AsyncClient(base_url=f"http://{gateway.http_address}") as client:
                assert (await client.get("/version")).status_code == 200


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_process_announces_itself_serves_and_stops_on_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    async with FakeStages() as fakes:
        config = tmp_path / "deployment.yaml"
        config.write_bytes(dump_deployment(deployment_of(fakes, http_listen="127.0.0.1:1")))
        arguments = ("--http-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0")
        async with gateway_process(config, *arguments) as (process, announced):
            listening = json.loads(await announced.readline())
            assert listening["event"] == "listening"
            ready: Any = json.loads(await announced.readline())
            assert ready["event"] == "ready"
            assert ready["seconds"] >= 0
            async with httpx.AsyncClient(base_url=f"http://{listening['http']}") as client:
                assert (await client.get("/health")).status_code == 200
            process.send_signal(number)
            assert await process.wait() == 0


async def test_process_says_what_is_wrong_with_its_deployment(tmp_path: Path) -> None:
    config = tmp_path / "deployment.yaml"
    config.write_text("stagez: {}")
    async with gateway_process(config) as (process, _):
        _, errors = await process.communicate()
        assert process.returncode == 2
        assert b"stagez" in errors
