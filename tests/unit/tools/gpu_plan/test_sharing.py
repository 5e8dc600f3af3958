"""Which stages share a GPU: as few GPUs as hold all sessions."""

from __future__ import annotations

import pytest

from antiphon.deployment.schema import deployment_of
from antiphon_tools.gpu_plan.plan_report import ModelPlan, as_json, as_text, settings
from antiphon_tools.gpu_plan.sharing import GpuShare, most_positions, share_gpus
from antiphon_tools.gpu_plan.stage_needs import StageNeeds

GIB = 1 << 30


def needs(
    role: str, weights: int, *, position_bytes: int = 0, engine: str = "torch", state: int = 0
) -> StageNeeds:
    """A stage of so many GiB with 4 sessions of 1024 positions."""
    return StageNeeds(
        role=role,
        engine=engine,
        dtype="bfloat16",
        stored={"bfloat16": weights * GIB},
        weights=weights * GIB,
        working=GIB,
        shared=0,
        position_bytes=position_bytes,
        session_state=state,
        most=4096,
        positions=1024 if position_bytes else 0,
        sessions=4,
        host=GIB,
        host_bounds={},
    )


THINKER = needs("thinker", 50, position_bytes=1 << 20)  # 51 GiB and 1 GiB a session
TALKER = needs("talker", 5, position_bytes=1 << 19)  # 6 GiB and 0.5 GiB a session
CODE2WAV = needs("code2wav", 1)
ALL = (THINKER, TALKER, CODE2WAV)


def roles(shares: list[GpuShare]) -> list[tuple[str, ...]]:
    return [tuple(each.role for each in share.stages) for share in shares]


@pytest.mark.parametrize(
    ("gpu", "expected"),
    [
        (65, [("thinker", "talker", "code2wav")]),
        (64, [("thinker",), ("talker", "code2wav")]),
        (55, [("thinker",), ("talker", "code2wav")]),
        (54, [("thinker",), ("talker", "code2wav")]),  # the thinker does not fit
        (9, [("thinker",), ("talker",), ("code2wav",)]),
    ],
)
def test_stages_share_as_few_gpus_as_hold_them(gpu: int, expected: list[tuple[str, ...]]) -> None:
    shares = share_gpus(ALL, gpu * GIB)
    assert roles(shares) == expected
    assert [each.fits for each in shares] == [
        each.stages[0].total <= gpu * GIB or len(each.stages) > 1 for each in shares
    ]


def test_sessions_that_fit_are_those_of_all_stages_of_a_gpu() -> None:
    (share,) = share_gpus(ALL, 80 * GIB)
    # 80 - 51 - 6 - 2 GiB for sessions of 1.5 GiB.
    assert share.most_sessions == 14
    assert GpuShare((CODE2WAV,), 2 * GIB).most_sessions is None
    assert GpuShare((CODE2WAV,), GIB).most_sessions == 0
    assert GpuShare((needs("code2wav", 1, state=GIB),), 5 * GIB).most_sessions == 3
    assert GpuShare((THINKER,), 50 * GIB).most_sessions == 0


def test_positions_that_fit_are_bounded_by_the_checkpoint() -> None:
    assert most_positions(THINKER, 53 * GIB) == 512
    assert most_positions(THINKER, 50 * GIB) == 0
    assert most_positions(THINKER, 500 * GIB) == 4096
    assert most_positions(CODE2WAV, 500 * GIB) == 0


def plan_of(*stages: StageNeeds, gpu: int) -> ModelPlan:
    return ModelPlan("model", "family", stages, (), gpu * GIB, share_gpus(stages, gpu * GIB))


def test_settings_are_those_of_a_deployment() -> None:
    found = settings(plan_of(needs("thinker", 50, position_bytes=1 << 20, engine="vllm"),
                             TALKER, gpu=60))  # fmt: skip
    assert found == {
        "stages": {
            "thinker": {
                "device": "cuda:0",
                "slots": 4,
                "context_limit": 1024,
                "engine_args": {"gpu_memory_utilization": 0.92},
            },
            "talker": {"device": "cuda:1", "slots": 4, "context_limit": 1024},
        }
    }
    assert deployment_of(found).stage("talker").context_limit == 1024


@pytest.mark.parametrize(
    ("gpu", "remedy"),
    [
        (
            53,
            "thinker: 55.0 GiB, which doesn't fit; "
            "2 sessions of this length fit, or 4 of 512 positions",
        ),
        (51, "use a larger GPU"),
        (40, "use a larger GPU"),
    ],
)
def test_stage_that_does_not_fit_has_a_remedy_and_no_settings(gpu: int, remedy: str) -> None:
    plan = plan_of(THINKER, CODE2WAV, gpu=gpu)
    assert not plan.fits
    assert as_json(plan)["fits"] is False
    assert remedy in as_text(plan)
    assert list(settings(plan)["stages"]) == ["code2wav"]


def test_shorter_sessions_are_the_remedy_if_not_one_fits() -> None:
    long = needs("thinker", 50, position_bytes=64 << 20)
    assert "4 sessions of 4 positions fit" in as_text(plan_of(long, gpu=52))


def test_stages_without_statement_are_named() -> None:
    plan = ModelPlan("model", "family", (TALKER,), ("singer",))
    assert "singer: the memory usage of this family is unknown" in as_text(plan)
    assert as_json(plan)["unknown"] == ["singer"]
    assert "gpus" not in as_json(plan)
