"""API keys take turns, whatever endpoint they come by; what is refused costs no stage anything."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import websockets

import antiphon
from antiphon_gateway.keys.key_file import digest_of, new_key
from tests.contract.fake_stages import ROLES, THINKER, Session
from tests.contract.served_gateway import MODEL, SPOKEN, ServedGateway, serve_gateway
from tests.contract.slotted_stages import QUEUE, Gate, WaitingRequests, waiting_requests

pytestmark = pytest.mark.asyncio(loop_scope="session")

ENDPOINTS = ("http", "grpc", "realtime", "converse")


@pytest.fixture
def waiting() -> Iterator[WaitingRequests]:
    with waiting_requests() as handler:
        yield handler


def write(path: Path, entries: list[dict[str, str]]) -> None:
    path.write_bytes(msgspec.yaml.encode({"keys": entries}))


@asynccontextmanager
async def keyed_gateway(
    path: Path, priorities: dict[str, str], **settings: Any
) -> AsyncIterator[tuple[ServedGateway, dict[str, str], Gate]]:
    """An endpoint with one call, and keys by name; whoever thinks waits at the gate."""
    keys = {name: new_key() for name in priorities}
    entries = [
        {"name": name, "sha256": digest_of(key), "priority": priorities[name]}
        for name, key in keys.items()
    ]
    write(path, entries)
    async with serve_gateway(max_calls=1, keys_file=str(path), **(QUEUE | settings)) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        yield served, keys, gate


def ask(served: ServedGateway, key: str, text: str, **fields: Any) -> asyncio.Task[httpx.Response]:
    body = {"model": MODEL, "messages": [{"role": "user", "content": text}], **fields}
    headers = {"authorization": f"Bearer {key}"}
    return asyncio.create_task(
        served.http.post("/v1/chat/completions", json=body, headers=headers, timeout=240)
    )


async def said_in(session: Session) -> str:
    """What was asked in a session of the thinker."""
    assert session.input is not None
    messages = json.loads(bytes(session.input.tensors["messages"]))
    return str(messages).split("said:")[-1].split(".")[0]


async def ask_at(
    name: str, served: ServedGateway, key: str, entered: AsyncExitStack
) -> asyncio.Task[Any]:
    """Ask by the endpoint of that name."""
    said = f"said:{name}."
    if name == "http":
        return ask(served, key, said)
    if name == "realtime":
        url = f"ws://{served.gateway.http_address}/v1/realtime?model={MODEL}"
        headers = {"authorization": f"Bearer {key}"}
        socket = await entered.enter_async_context(
            websockets.connect(url, additional_headers=headers)
        )
        item = {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": said}],
        }
        await socket.send(json.dumps({"type": "conversation.item.create", "item": item}))
        await socket.send(json.dumps({"type": "response.create"}))

        async def until_done() -> None:
            while json.loads(await socket.recv())["type"] != "response.done":
                pass

        return asyncio.create_task(until_done())
    client = await entered.enter_async_context(
        antiphon.AsyncClient(served.gateway.grpc_address, api_key=key, key_in_clear=True)
    )
    if name == "grpc":
        return asyncio.create_task(client.generate(said).collect())

    async def converse() -> None:
        async with client.converse() as conversation:
            await conversation.add(said)
            await conversation.respond()
            conversation.finish()
            assert [event async for event in conversation]

    return asyncio.create_task(converse())


async def test_no_key_waits_for_more_than_a_turn_of_each_other_one_at_any_endpoint(
    tmp_path: Path, waiting: WaitingRequests
) -> None:
    names = dict.fromkeys(("flood", *ENDPOINTS), "normal")
    async with (
        keyed_gateway(tmp_path / "keys", names) as (served, keys, gate),
        AsyncExitStack() as held,
    ):
        asking: list[asyncio.Task[Any]] = [ask(served, keys["flood"], "said:first.")]
        await gate.begun.get()
        for number in range(6):
            asking.append(ask(served, keys["flood"], "said:flood."))
            await waiting.until(number + 1)
        for number, name in enumerate(ENDPOINTS):
            asking.append(await ask_at(name, served, keys[name], held))
            await waiting.until(number + 7)
        order = []
        for _ in asking[1:]:
            gate.let_through()
            order.append(await said_in(await gate.begun.get()))
        gate.let_through()
        await asyncio.gather(*asking)
        assert order[5:] == ["flood"] * 5
        assert sorted(order[:5]) == sorted(("flood", *ENDPOINTS))


async def test_a_lower_priority_gives_way_and_the_stages_hear_of_no_refusal(
    tmp_path: Path, waiting: WaitingRequests
) -> None:
    names = {"shop": "normal", "ward": "high"}
    async with keyed_gateway(tmp_path / "keys", names, max_waiting=1) as (served, keys, gate):
        running = ask(served, keys["shop"], "said:first.", **SPOKEN)
        await gate.begun.get()
        flexible = ask(served, keys["ward"], "said:flexible.", **SPOKEN, service_tier="flex")
        await waiting.until(1)
        urgent = ask(served, keys["ward"], "said:urgent.", **SPOKEN)
        shed = await flexible
        refused = await ask(served, keys["shop"], "said:late.", **SPOKEN)
        for each, told in (
            (shed, "with a higher priority"),
            (refused, "gateway.queue.max_waiting"),
        ):
            assert (each.status_code, each.json()["error"]["code"]) == (429, "resource_exhausted")
            assert told in each.json()["error"]["message"]
            assert 1 <= int(each.headers["retry-after"]) <= 60
        assert [len(served.fakes[role].sessions) for role in ROLES] == [1, 1, 1]
        gate.let_through(2)
        assert [(await each).status_code for each in (running, urgent)] == [200, 200]
        for priority, outcome in (
            ("low", "shed"),
            ("normal", "max_waiting"),
            ("normal", "admitted"),
            ("high", "admitted"),
        ):
            labels = f'{{outcome="{outcome}",priority="{priority}"}}'
            assert await served.metric(f"antiphon_gateway_admissions_total{labels}") == 1
