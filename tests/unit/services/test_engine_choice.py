"""Which engine a stage runs."""

from __future__ import annotations

import pytest

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument
from antiphon_services.stage.engines import TORCH, VLLM, choose_engine, require_torch


@pytest.mark.parametrize(
    ("config", "vllm_runs", "chosen"),
    [
        (StageConfig(), True, TORCH),
        (StageConfig(device="cuda"), True, VLLM),
        (StageConfig(device="cuda:1"), True, VLLM),
        (StageConfig(device="cuda"), False, TORCH),
        (StageConfig(engine="torch", device="cuda"), True, TORCH),
        (StageConfig(engine="vllm"), False, VLLM),
        (StageConfig(engine="vllm", engine_args={"quantization": "fp8"}), True, VLLM),
    ],
)
def test_auto_takes_vllm_where_cuda_and_vllm_are(
    config: StageConfig, vllm_runs: bool, chosen: str
) -> None:
    assert choose_engine("thinker", config, vllm_runs=lambda: vllm_runs) == chosen


@pytest.mark.parametrize(
    ("config", "field"),
    [
        (StageConfig(engine="abacus"), "engine"),
        (StageConfig(engine="torch", engine_args={"quantization": "fp8"}), "engine_args"),
        (StageConfig(engine_args={"quantization": "fp8"}), "engine_args"),
    ],
)
def test_configuration_is_refused_by_field(config: StageConfig, field: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        choose_engine("thinker", config, vllm_runs=lambda: False)
    assert raised.value.field == field
    with pytest.raises(InvalidArgument):
        require_torch("talker", config)
