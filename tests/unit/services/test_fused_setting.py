"""Where fused kernels cannot run, the setting is refused with the remedy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon_services.lm import kernels as functions
from antiphon_services.lm.graphs import Eager, graphs_of
from antiphon_services.lm.kernels import Kernels, kernels_of
from antiphon_services.stage.engines import choose_engine, refuse_fused, require_plain_torch
from antiphon_testkit.flat_settings import stage_config


def test_nothing_is_fused_by_default() -> None:
    assert kernels_of(StageConfig()) is None
    assert graphs_of(StageConfig()) is None


def test_cpu_runs_fused_kernels_in_the_buckets_of_graphs() -> None:
    assert graphs_of(stage_config(fused=True)) is Eager


def test_gpu_needs_graphs() -> None:
    with pytest.raises(
        InvalidArgument, match=r"torch\.fused:.*set torch\.graphs to true"
    ) as raised:
        kernels_of(stage_config(device="cuda", fused=True))
    assert raised.value.field == "torch.fused"


def test_stages_without_kernels_refuse_it() -> None:
    refuse_fused("code2wav", StageConfig())
    with pytest.raises(
        InvalidArgument, match=r"the stage code2wav has no fused kernels; set torch\.fused to false"
    ):
        refuse_fused("code2wav", stage_config(fused=True))


@pytest.mark.parametrize(("config", "field"), [
    (StageConfig(engine="vllm"), "engine"),
    (StageConfig(engine_args={"seed": 1}), "engine_args"),
    (stage_config(fused=True), "torch.fused"),
    (StageConfig(device="abacus"), "device"),
], ids=["engine", "arguments", "fused", "device"])  # fmt: skip
def test_stage_of_torch_alone_names_the_setting(config: StageConfig, field: str) -> None:
    require_plain_torch("code2wav", StageConfig())
    with pytest.raises(InvalidArgument) as raised:
        require_plain_torch("code2wav", config)
    assert raised.value.field == field


@pytest.mark.parametrize("config", [
    stage_config(fused=True, engine="vllm"),
    stage_config(fused=True, device="cuda"),
], ids=["chosen", "auto"])  # fmt: skip
def test_thinker_on_vllm_refuses_it(config: StageConfig) -> None:
    with pytest.raises(InvalidArgument, match=r"thinker on vllm has no fused kernels"):
        choose_engine("thinker", config, vllm_runs=lambda: True)


def test_machine_without_a_compiler_is_told_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*args: Any) -> None:
        raise RuntimeError("no C compiler")

    def uncompiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        return fails

    monkeypatch.setattr(torch, "compile", uncompiled)
    with pytest.raises(FailedPrecondition, match=r"cpu: RuntimeError: no C compiler; install a C"):
        Kernels().check(torch.device("cpu"))


def test_torch_2_11_compiles_a_function_for_as_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose `torch.compile` has these keywords and no others."""
    compile_: Any = torch.compile

    def older(
        model: Callable[..., Any],
        *,
        fullgraph: bool = False,
        dynamic: bool | None = None,
        backend: str = "inductor",
        mode: str | None = None,
        options: dict[str, Any] | None = None,
        disable: bool = False,
    ) -> Callable[..., Any]:
        compiled: Callable[..., Any] = compile_(
            model, fullgraph=fullgraph, dynamic=dynamic, backend="eager", mode=mode, disable=disable
        )
        return compiled

    monkeypatch.setattr(torch, "compile", older)
    # A monkeypatch of an attribute of this module deletes it in the end.
    limits: Any = torch._dynamo.config
    with limits.patch(recompile_limit=8, accumulated_recompile_limit=16):
        kernels = Kernels()
        for rows in range(1, 21):
            both = torch.randn(rows, 8)
            assert torch.equal(kernels.gate(both), functions.gate(both))
