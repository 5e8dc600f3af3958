"""The law holds whatever vLLM makes of its memory and its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.reference import Reference
from antiphon_testkit.qwen3_omni.tiny_checkpoint import OTHER, build_tiny_checkpoint
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.warm.launcher import WarmLauncher
from tests.equality.asking import ask, check, groups
from tests.equality.prompt_rows import check_rows, hear_prompt
from tests.equality.test_fidelity import AUDIO_CASES, MIXED_CASES, TEXT_CASES, TURN_CASES
from tests.equality.truth import Truth

pytest.importorskip("vllm")
# It cannot be imported without vLLM.
from tests.equality.test_vision import KINDS

pytestmark = [
    pytest.mark.equality,
    pytest.mark.processes,
    pytest.mark.asyncio(loop_scope="module"),
]

SETTINGS = {
    # Prompts are cut into steps of 64 ids, and every one is computed anew.
    "cut": StageConfig(
        engine="vllm",
        slots=24,
        engine_args={
            "kv_cache_memory_bytes": 128 << 20,
            "enable_prefix_caching": False,
            "max_num_batched_tokens": 64,
        },
    ),
    # Room for 19 blocks of 32 positions, of which the cases at once want twice as many:
    # vLLM throws some out, to compute them again later.
    "scarce": StageConfig(
        engine="vllm",
        slots=24,
        context_limit=512,
        engine_args={"block_size": 32, "num_gpu_blocks_override": 20},
    ),
}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("checkpoints") / "other"
    build_tiny_checkpoint(directory, OTHER)
    return directory


@pytest.fixture(scope="module")
def other_truth(other: Path) -> Truth:
    return Truth(Reference(other))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=list(SETTINGS))
async def running_with(request: pytest.FixtureRequest, other: Path) -> AsyncIterator[Running]:
    thinker = SETTINGS[request.param]
    async with WarmLauncher(local_deployment(other, thinker=thinker)) as running:
        yield running


async def test_sessions_at_once_equal_the_reference(
    running_with: Running, other_truth: Truth
) -> None:
    truth = other_truth
    cases = [
        *truth.safe(TEXT_CASES, 4),
        *truth.safe(AUDIO_CASES, 2),
        *truth.safe(MIXED_CASES, 1),
        *truth.safe(TURN_CASES, 2),
        *(truth.safe(KINDS[kind], 1)[0] for kind in ("large", "heard", "video", "all")),
    ]
    heard = [*AUDIO_CASES, *TURN_CASES, *(KINDS[kind][0] for kind in ("two", "turns", "video"))]
    address = running_with.processes["thinker"].address
    async with antiphon.AsyncClient(running_with.grpc_address) as client:
        for attempt in range(2):
            answers, prompts = await asyncio.gather(
                asyncio.gather(*(ask(client, case, groups=groups(truth)) for case in cases)),
                asyncio.gather(
                    *(
                        hear_prompt(address, f"{attempt} {n}", case.conversation)
                        for n, case in enumerate(heard)
                    )
                ),
            )
            for case, answer in zip(cases, answers, strict=True):
                check(answer, truth.of(case))
            for case, tensors in zip(heard, prompts, strict=True):
                check_rows(tensors, truth, case)
