"""From a request to the numbers that its answers are drawn with: no two of these are one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.server.served_session import segment_request
from antiphon.runtime.session.plan import StageLimits, StagePlan
from antiphon.values.sampling import Sampling
from antiphon_services.lm.sampler import uniform_each
from tests.contract.fake_stages import ROLES, FakeStages
from tests.contract.served_gateway import SPOKEN, ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

STEPS, GROUPS = 100, 16
DEFAULTS = Sampling(0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, seed=0, max_tokens=9)
LIMITS = StageLimits(slots=1, stall_timeout_s=1.0, hold_timeout_s=1.0, hold_bytes=1)


def keys(fakes: FakeStages) -> list[int]:
    """What the engines behind all sessions would have as seeds."""
    settings = [
        StagePlan.of(PIPELINE, role, DEFAULTS, LIMITS).settings(
            segment_request(session.segment, role), frozenset()
        )
        for role in ROLES
        for session in fakes[role].sessions
    ]
    return [each.sampling.seed for each in settings]


def numbers_of(keys: list[int]) -> npt.NDArray[np.float64]:
    """Those of the first draws, [keys, steps, groups]."""
    steps = [*range(STEPS)] * len(keys)
    numbers = uniform_each(np.repeat(keys, STEPS).tolist(), steps, GROUPS)
    return numbers.reshape(len(keys), STEPS, GROUPS)


@pytest.mark.parametrize(
    "asked",
    [
        {"seed": 5},
        {},
        {"seed": 5, "talker": {"seed": 5}},
        {"seed": 5, "talker": {"seed": 6}},
        {"seed": 5, "talker": {"seed": 5 + 0x9E3779B97F4A7C15 - (1 << 63)}},
        {"talker": {"seed": 5}},
        {"seed": (1 << 63) - 1, "talker": {"seed": 0}},
    ],
    ids=str,
)
async def test_all_draws_of_a_request_have_numbers_of_their_own(
    served: ServedGateway, asked: dict[str, Any]
) -> None:
    assert (await served.chat(**SPOKEN, n=3, **asked)).status_code == 200
    drawn = keys(served.fakes)
    assert len(drawn) == len(ROLES) * 3
    numbers = numbers_of(drawn)
    assert len(np.unique(numbers)) == numbers.size


async def test_the_same_request_is_drawn_alike_whatever_its_company(served: ServedGateway) -> None:
    async def asked(**fields: Any) -> set[int]:
        served.fakes.reset()
        assert (await served.chat(**SPOKEN, seed=7, **fields)).status_code == 200
        return set(keys(served.fakes))

    alone, three = await asked(), await asked(n=3)
    assert await asked() == alone
    assert await asked(n=3) == three
    assert alone < await asked(n=2) < three
