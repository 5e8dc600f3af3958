"""Quantised checkpoints are refused by method and remedy, stage by stage."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from antiphon.deployment.schema import StageConfig
from antiphon.errors import FailedPrecondition
from antiphon.pipelines.registry import pipeline_of
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.qwen2_5_omni import tiny_checkpoint as tiny25
from antiphon_testkit.qwen3_omni import tiny_checkpoint as tiny3

FAMILIES = {
    "qwen3_omni": (tiny3.build_tiny_checkpoint, ("talker", "code2wav")),
    "qwen2_5_omni": (tiny25.build_tiny_checkpoint, ("talker", "token2wav")),
}
PACKED: Mapping[str, tuple[str, ...]] = {
    "awq": ("qweight", "qzeros", "scales"),
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "compressed-tensors": ("weight_packed", "weight_scale", "weight_shape"),
    "bitsandbytes": ("weight", "weight.absmax", "weight.quant_map"),
    "fp8": ("weight", "weight_scale_inv"),
}
"""Suffixes of what stands in a weight's place, by method."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint of each family, in one file."""
    made = {}
    for family, (build, _) in FAMILIES.items():
        folder = tmp_path_factory.mktemp(family) / "checkpoint"
        build(folder)
        tensors: dict[str, torch.Tensor] = {}
        for file in sorted(folder.glob("*.safetensors")):
            tensors |= load_file(file)
            file.unlink()
        (folder / "model.safetensors.index.json").unlink(missing_ok=True)
        save_file(tensors, folder / "model.safetensors")
        made[family] = folder
    return made


def quantised(
    source: Path,
    folder: Path,
    prefix: str,
    method: str,
    *,
    told: bool = True,
    edit: Callable[[dict[str, torch.Tensor]], None] | None = None,
) -> Path:
    """A copy in which the projections of attention under `prefix` are stored as by `method`."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).hardlink_to(file)
    tensors = load_file(source / "model.safetensors")
    for name in [*tensors]:
        if name.startswith(prefix) and name.endswith("q_proj.weight"):
            weight = tensors.pop(name)
            stem = name.removesuffix("weight")
            tensors |= {stem + each: torch.zeros(1, dtype=torch.int32) for each in PACKED[method]}
            if "weight" in PACKED[method]:
                tensors[name] = weight.to(torch.float8_e4m3fn)
    if edit is not None:
        edit(tensors)
    (folder / "model.safetensors").unlink()
    save_file(tensors, folder / "model.safetensors")
    if told:
        file = folder / "config.json"
        config: dict[str, Any] = json.loads(file.read_text())
        config["quantization_config"] = {
            "quant_method": method,
            "modules_to_not_convert": ["talker", "code2wav", "token2wav"],
        }
        file.unlink()
        file.write_text(json.dumps(config))
    return folder


def load(folder: Path, role: str) -> object:
    return load_stage(pipeline_of(folder), role, folder, StageConfig(slots=1, engine="torch"))


def load_any(folder: Path, role: str) -> object:
    return load_stage(pipeline_of(folder), role, folder, StageConfig(slots=1))


@pytest.mark.parametrize("method", PACKED)
@pytest.mark.parametrize("family", FAMILIES)
def test_quantised_thinker_is_refused_by_method_and_remedy_and_the_rest_loads(
    family: str, method: str, whole: dict[str, Path], tmp_path: Path
) -> None:
    folder = quantised(whole[family], tmp_path / "checkpoint", "thinker.model.", method)
    with pytest.raises(FailedPrecondition) as refused:
        load(folder, "thinker")
    said = refused.value.message
    assert f"thinker is quantized with {method} (thinker.model.layers.0.self_attn.q_proj." in said
    assert "set the stage's engine to vllm, which supports it, or use a checkpoint" in said
    for role in FAMILIES[family][1]:
        assert load_any(folder, role)


@pytest.mark.parametrize("family", FAMILIES)
def test_quantised_talker_is_refused_without_a_remedy_that_does_not_help(
    family: str, whole: dict[str, Path], tmp_path: Path
) -> None:
    folder = quantised(whole[family], tmp_path / "checkpoint", "talker.", "fp8")
    with pytest.raises(FailedPrecondition) as refused:
        load(folder, "talker")
    assert "talker.* is quantized with fp8 (talker." in refused.value.message
    assert "vllm" not in refused.value.message
    assert load(folder, "thinker")


@pytest.mark.parametrize(
    ("method", "said"),
    [("awq", "GPTQ or AWQ"), ("fp8", "FP8"), ("bitsandbytes", "bitsandbytes")],
)
def test_quantisation_that_config_json_does_not_tell_is_known_by_its_tensors(
    method: str, said: str, whole: dict[str, Path], tmp_path: Path
) -> None:
    source = whole["qwen3_omni"]
    folder = quantised(source, tmp_path / "checkpoint", "thinker.model.", method, told=False)
    with pytest.raises(FailedPrecondition, match=f"thinker is quantized with {said} "):
        load(folder, "thinker")


def test_numbers_of_8_bits_without_a_scale_are_refused_by_type(
    whole: dict[str, Path], tmp_path: Path
) -> None:
    name = "code2wav.decoder.0.conv.weight"

    def store(tensors: dict[str, torch.Tensor]) -> None:
        tensors[name] = tensors[name].to(torch.float8_e4m3fn)

    folder = quantised(whole["qwen3_omni"], tmp_path / "checkpoint", "none.", "awq", edit=store)
    with pytest.raises(FailedPrecondition, match=rf"{name}: is stored as float8_e4m3fn"):
        load(folder, "code2wav")


def test_quantised_word_table_is_refused_by_name(whole: dict[str, Path], tmp_path: Path) -> None:
    def store(tensors: dict[str, torch.Tensor]) -> None:
        tensors["thinker.model.embed_tokens.scales"] = torch.zeros(3)

    folder = quantised(whole["qwen3_omni"], tmp_path / "checkpoint", "none.", "awq", edit=store)
    with pytest.raises(FailedPrecondition, match=r"thinker\.model\.embed_tokens is quantized with"):
        load(folder, "talker")
