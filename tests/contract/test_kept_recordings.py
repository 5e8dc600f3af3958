"""Recordings of earlier turns: told by their keys, and sent again where they were forgotten."""

from __future__ import annotations

import numpy as np

import antiphon
from antiphon.errors import NotFound
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import from_tensors, recording_key
from antiphon_gateway.server import Gateway
from tests.contract.converse_client import until
from tests.contract.fake_stages import (
    ROLES,
    THINKER,
    USUAL,
    FakeStage,
    FakeStages,
    Session,
    describe,
    think,
    twice,
)
from tests.contract.served_gateway import deployment_of

RATE_HZ = 16_000
FIRST, SECOND, THIRD = (
    (np.random.default_rng(seed).standard_normal(8_000) * 3000).astype("<i2") for seed in range(3)
)


async def test_earlier_recordings_are_told_by_their_keys_until_the_stage_has_forgotten_one() -> (
    None
):
    heard: list[tuple[Tensor, ...]] = []

    async def note(session: Session) -> None:
        assert session.input is not None
        heard.append(from_tensors(session.input.tensors).recordings)
        if len(heard) == 3:
            await session.error(NotFound("audio.0: is not known any more", field="audio.0"))
        else:
            await think(session)

    async def thinker(session: Session) -> None:
        for _ in range(2):
            await note(session)
            await session.next_segment()
        await note(session)

    scripts = {role: twice(twice(USUAL[role])) for role in ROLES} | {THINKER: thinker}
    stages = {role: FakeStage(role, scripts[role], describe(role)) for role in ROLES}
    stages[THINKER].description.keeps_recordings = True
    async with (
        FakeStages(stages) as fakes,
        Gateway(deployment_of(fakes)) as gateway,
        antiphon.AsyncClient(gateway.grpc_address) as client,
    ):
        await gateway.wait_ready()
        async with client.converse(spoken=False) as call:
            for said in (FIRST, SECOND, THIRD):
                await call.send_audio(said.tobytes(), RATE_HZ)
                await call.commit_audio()
                await call.respond()
                done = await until(call, antiphon.ResponseDone)
                assert done.response.status == "completed", done.response.error
        assert len(fakes[THINKER].sessions) == 2
    one, two, three = (each.astype(np.float32) / 32768 for each in (FIRST, SECOND, THIRD))
    keys = [np.frombuffer(recording_key(each), np.uint8) for each in (one, two)]
    expected = [(one,), (keys[0], two), (*keys, three), (one, two, three)]
    assert len(heard) == len(expected)
    for came, told in zip(heard, expected, strict=True):
        assert [each.dtype for each in came] == [each.dtype for each in told]
        for here, there in zip(came, told, strict=True):
            np.testing.assert_array_equal(here, there)


async def test_stage_that_keeps_no_recordings_gets_all_of_them_with_every_turn() -> None:
    heard: list[list[int]] = []

    async def thinker(session: Session) -> None:
        assert session.input is not None
        heard.append([len(each) for each in from_tensors(session.input.tensors).recordings])
        await think(session)

    scripts = {role: twice(USUAL[role]) for role in ROLES} | {THINKER: twice(thinker)}
    stages = {role: FakeStage(role, scripts[role], describe(role)) for role in ROLES}
    async with (
        FakeStages(stages) as fakes,
        Gateway(deployment_of(fakes)) as gateway,
        antiphon.AsyncClient(gateway.grpc_address) as client,
    ):
        await gateway.wait_ready()
        async with client.converse(spoken=False) as call:
            for said in (FIRST, SECOND):
                await call.send_audio(said.tobytes(), RATE_HZ)
                await call.commit_audio()
                await call.respond()
                await until(call, antiphon.ResponseDone)
    assert heard == [[8_000], [8_000, 8_000]]
