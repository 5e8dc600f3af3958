"""A fleet that holds two builds of its stages, which accept different things."""

from __future__ import annotations

from dataclasses import replace

import pytest

from antiphon.errors import InvalidArgument
from antiphon.v1 import stage_pb2
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon_gateway.orders.order import Order
from tests.contract.fake_stages import THINKER, FakeStage
from tests.contract.replicated_stages import open_replicas

pytestmark = pytest.mark.asyncio(loop_scope="session")

ORDER = Order(
    messages=(ConversationMessage("user", (TextPart("Hi"),)),), outputs=frozenset({"text"})
)


async def test_a_request_is_read_by_the_rules_of_the_build_that_answers_it() -> None:
    def prepare(fakes: dict[str, list[FakeStage]]) -> None:
        for stage in fakes.values():
            for build, fake in zip(("old", "new"), stage, strict=True):
                fake.description.checkpoint_fingerprint = build
        kind = stage_pb2.OPTION_KIND_NUMBER
        fakes[THINKER][1].description.options.add(name="pitch", kind=kind, most=3)

    order = replace(ORDER, options={"pitch": 2.0})
    answered = refused = 0
    async with open_replicas(thinker=2, talker=2, code2wav=2, prepare=prepare) as replicas:
        for _ in range(40):
            try:
                async with replicas.gateway.calls.answer(order) as segment:
                    async for _ in segment:
                        pass
                answered += 1
            except InvalidArgument:
                refused += 1
        assert answered
        assert refused
        assert replicas.sessions() == [0, answered], "the old one knows no such option"
        options = [each.segment.options["pitch"] for each in replicas.fakes[THINKER][1].sessions]
        assert {each.number for each in options} == {2.0}
