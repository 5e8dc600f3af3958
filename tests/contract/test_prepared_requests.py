"""Requests are checked and decoded once, before they take a slot, and their bytes are counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from antiphon.errors import ResourceExhausted
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import ConversationMessage, TextPart, from_tensors
from antiphon.values.options import Option, OptionKind
from antiphon.wire.options import option_to_proto, option_values_from_proto
from antiphon_gateway.admission.byte_budget import Holder
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.vision_in import File
from antiphon_gateway.orders import preparing
from antiphon_gateway.orders.order import Order
from antiphon_gateway.sessions.events import Event
from benchmarks.hostile import files
from tests.contract.failing_stages import ORDER, Failing, check_whole, failing, told_by
from tests.contract.fake_stages import INPUT_RATE_HZ, ROLES, THINKER
from tests.contract.replicated_stages import open_replicas
from tests.contract.served_gateway import serve_gateway, tell_anew
from tests.contract.slotted_stages import (
    QUEUE,
    Gate,
    WaitingRequests,
    open_slotted,
    waiting_requests,
)
from tests.contract.test_audio_input import ask, tone, wav

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLES = tone(INPUT_RATE_HZ)
FILE = wav(SAMPLES, INPUT_RATE_HZ)
PNG = files.png_of(9, 7)
DECODED_BYTES = 4 * len(SAMPLES)


@pytest.fixture
def waiting() -> Iterator[WaitingRequests]:
    with waiting_requests() as handler:
        yield handler


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What decoders have made."""
    made: list[Tensor] = []
    decode = MediaDecoder.decode

    async def noted(*arguments: Any) -> Tensor:
        made.append(await decode(*arguments))
        return made[-1]

    monkeypatch.setattr(MediaDecoder, "decode", noted)
    return made


def order() -> Order:
    attachments = Attachments()
    part = attachments.add_recording(Recording("file", FILE))
    message = ConversationMessage("user", (part,))
    return Order(messages=(message,), attachments=attachments, outputs=frozenset({"text"}))


async def test_a_recording_is_decoded_once_though_stages_refuse_it(decoded: list[Tensor]) -> None:
    async with open_slotted(1, told=False) as (served, stages):
        stages[THINKER].others = 2
        assert (await ask(served, FILE)).status_code == 200
        assert stages[THINKER].refused >= 2
    assert len(decoded) == 1


async def test_a_recording_is_decoded_once_though_its_answer_is_continued(
    decoded: list[Tensor],
) -> None:
    script = Failing(THINKER)
    async with open_replicas(thinker=2, prepare=failing(THINKER, script)) as replicas:
        async with asyncio.timeout(120), replicas.gateway.calls.answer(order()) as segment:
            await anext(segment)
            script.now.set()
            assert [event async for event in segment]
        sessions = [each for fake in replicas.fakes[THINKER] for each in fake.sessions]
        heard = [from_tensors(each.input.tensors).recordings for each in sessions if each.input]
    assert len(decoded) == 1
    assert len(heard) == 2
    assert heard[0][0].tobytes() == heard[1][0].tobytes() == decoded[0].tobytes()


async def test_the_whole_order_is_in_each_session_of_an_answer_that_is_continued() -> None:
    script, attachments = Failing(THINKER), Attachments()
    part = attachments.add_image(File("image", PNG))
    seen = replace(
        order(),
        messages=(
            ConversationMessage("system", (TextPart("Be brief."),)),
            ConversationMessage("user", (part,)),
        ),
        attachments=attachments,
    )
    async with open_replicas(thinker=2, prepare=failing(THINKER, script)) as replicas:
        for replica in replicas.gateway.fleet[THINKER]:
            assert replica.description is not None
            replica.description.input_kinds.append("image")
            replica.description.max_input_images = 1
        async with asyncio.timeout(120), replicas.gateway.calls.answer(seen) as segment:
            await anext(segment)
            script.now.set()
            assert [event async for event in segment]
        sessions = [each for fake in replicas.fakes[THINKER] for each in fake.sessions]
        brought = [from_tensors(each.input.tensors) for each in sessions if each.input]
    assert [[each.tobytes() for each in given.images] for given in brought] == [[PNG], [PNG]]
    assert [given.messages for given in brought] == [seen.messages, seen.messages]


@pytest.mark.parametrize("role", ROLES)
async def test_the_options_are_in_each_session_of_an_answer_that_is_continued(role: str) -> None:
    """And those of the other stages, whose sessions are new as well."""
    room, sample = (
        Option("room", OptionKind.TEXT, choices=("hall", "studio")),
        Option("sample", OptionKind.AUDIO, sample_rate_hz=8_000, max_s=1.0),
    )
    script = Failing(role)
    counts = dict.fromkeys(ROLES, 2)
    async with open_replicas(**counts, prepare=failing(role, script)) as replicas:
        for each in ROLES:
            for replica in replicas.gateway.fleet[each]:
                assert replica.description is not None
                replica.description.options.extend(map(option_to_proto, (room, sample)))
        tell_anew(replicas.gateway)
        asked = replace(
            ORDER, options={"room": "studio", "sample": Recording("options.sample", FILE)}
        )
        events: list[Event] = []
        async with asyncio.timeout(120), replicas.gateway.calls.answer(asked) as segment:
            async for event in segment:
                events.append(event)
                if told_by(role, events):
                    script.now.set()
        check_whole(events)
        sessions = {
            each: [session for fake in replicas.fakes[each] for session in fake.sessions]
            for each in ROLES
        }
    assert len(sessions[role]) == 2
    for each in ROLES:
        given = [option_values_from_proto(session.segment.options) for session in sessions[each]]
        assert [values["room"] for values in given] == ["studio"] * len(given)
        recordings = [values["sample"] for values in given]
        assert all(isinstance(recording, np.ndarray) for recording in recordings)
        assert len({recording.tobytes() for recording in recordings}) == 1
        assert len(recordings[0]) > 0


async def test_decoding_takes_of_the_time_of_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, decode = 100.0, MediaDecoder.decode

    async def slow(*arguments: Any) -> Tensor:
        nonlocal now_s
        now_s += 3.0
        return await decode(*arguments)

    clock = SimpleNamespace(monotonic=lambda: now_s)
    async with serve_gateway() as served:
        monkeypatch.setattr(MediaDecoder, "decode", slow)
        monkeypatch.setattr(preparing, "time", clock)
        asked = replace(order(), timeout_s=10.0, start_within_s=5.0)
        prepared = await served.gateway.calls.prepare(asked)
    assert (prepared.order.timeout_s, prepared.order.start_within_s) == (7.0, 2.0)
    assert (asked.timeout_s, asked.start_within_s) == (10.0, 5.0)


async def test_files_of_a_request_that_would_be_denied_are_not_decoded(
    decoded: list[Tensor],
) -> None:
    async with serve_gateway(max_calls=1) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = asyncio.create_task(served.chat())
        await gate.begun.get()
        denied = await ask(served, FILE)
        assert denied.status_code == 429
        assert await served.metric('antiphon_gateway_not_admitted_total{reason="max_waiting"}') == 1
        gate.let_through()
        assert (await running).status_code == 200
    assert not decoded


async def test_a_request_that_waits_holds_its_decoded_bytes(waiting: WaitingRequests) -> None:
    async with serve_gateway(max_calls=1, **QUEUE) as served:
        gate = served.fakes[THINKER].script = Gate(THINKER)
        running = asyncio.create_task(served.chat())
        await gate.begun.get()
        late = asyncio.create_task(ask(served, FILE))
        await waiting.until(1)
        held = await served.held()
        assert set(held) == {"waiting", "answering"}, "counted once"
        assert DECODED_BYTES <= held["waiting"] < DECODED_BYTES + len(FILE)
        gate.let_through(2)
        assert [(await each).status_code for each in (running, late)] == [200, 200]


async def test_decoded_bytes_take_room_from_the_share_of_uploads() -> None:
    async with serve_gateway(max_memory_bytes=8 * DECODED_BYTES) as served:
        calls = served.gateway.calls
        prepared = await calls.prepare(order())
        assert prepared.media.size_bytes == DECODED_BYTES
        assert await served.held() == {"uploads": DECODED_BYTES}
        prepared.media.release()
        with calls.memory.lease(Holder.UPLOADS) as others:
            others.take(DECODED_BYTES)
            others.keep()
            with pytest.raises(ResourceExhausted, match="max_memory_bytes"):
                await calls.prepare(order())
        assert await served.metric('antiphon_gateway_refused_total{bound="memory_uploads"}') == 1
        assert not await served.held()
        assert (await ask(served, FILE)).status_code == 200


@pytest.mark.parametrize("kept", [True, False])
async def test_what_is_not_kept_for_failover_is_released_when_the_answer_begins(kept: bool) -> None:
    async with serve_gateway(failovers=3 if kept else 0) as served:
        calls = served.gateway.calls
        prepared = await calls.prepare(order())
        async with calls.choices(prepared) as segment:
            assert prepared.media.size_bytes == (DECODED_BYTES if kept else 0)
            assert await served.held() == ({"answering": DECODED_BYTES} if kept else {})
            assert [event async for event in segment]
        await calls.wait_idle()
        assert not await served.held()
