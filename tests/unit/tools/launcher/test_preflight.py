"""What is found before a process starts, by files and headers alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.errors import FailedPrecondition, InvalidArgument, NotFound
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon_tools.launcher import preflight
from antiphon_tools.launcher.plan import application_root, resolve
from antiphon_tools.launcher.preflight import check_checkpoint, check_devices, check_engines

INDEX = "model.safetensors.index.json"
TENSOR_BYTES = 32


def write_weights(path: Path) -> None:
    described = {"dtype": "F32", "shape": [8], "data_offsets": [0, TENSOR_BYTES]}
    header = json.dumps({"__metadata__": {"format": "pt"}, "a": described}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(TENSOR_BYTES))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    directory = tmp_path / "checkpoint"
    (directory / "speech_tokenizer").mkdir(parents=True)
    for name in ("tokenizer_config.json", "tokenizer.json"):
        (directory / name).write_text("{}")
    shards = ["model-1.safetensors", "model-2.safetensors"]
    (directory / INDEX).write_text(json.dumps({"weight_map": dict(zip("ab", shards, strict=True))}))
    for shard in (*shards, "speech_tokenizer/model.safetensors"):
        write_weights(directory / shard)
    return directory


def cut(path: Path, left: int) -> None:
    path.write_bytes(path.read_bytes()[:left])


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "has no tokenizer"),
    "a shard is missing": (
        lambda d: (d / "model-2.safetensors").unlink(),
        r"model-2.safetensors: is missing",
    ),
    "a shard is truncated": (
        lambda d: cut(d / "model-2.safetensors", -1),
        r"model-2.safetensors: is truncated: it has \d+ of \d+ bytes",
    ),
    "a header is truncated": (
        lambda d: cut(d / "model-1.safetensors", 20),
        "model-1.safetensors: is not a complete safetensors file",
    ),
    "a file is empty": (lambda d: cut(d / "model-1.safetensors", 0), "is not a complete"),
    "a part's file is truncated": (
        lambda d: cut(d / "speech_tokenizer" / "model.safetensors", -8),
        "speech_tokenizer/model.safetensors: is truncated",
    ),
    "a Git LFS pointer": (
        lambda d: (d / "model-1.safetensors").write_text("version https://git-lfs.github.com/spec"),
        "git lfs pull",
    ),
}


@pytest.mark.parametrize(("spoil", "words"), BROKEN.values(), ids=BROKEN)
def test_a_checkpoint_that_is_not_whole_is_refused(
    checkpoint: Path, spoil: Callable[[Path], object], words: str
) -> None:
    check_checkpoint(checkpoint)
    spoil(checkpoint)
    with pytest.raises(FailedPrecondition, match=words):
        check_checkpoint(checkpoint)


def test_a_checkpoint_with_other_tokenizer_files_is_taken(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").rename(checkpoint / "vocab.json")
    check_checkpoint(checkpoint)
    # A family may have none at all.
    (checkpoint / "vocab.json").unlink()
    (checkpoint / "tokenizer_config.json").unlink()
    check_checkpoint(checkpoint)


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_gpu_is_refused_where_there_is_none(tmp_path: Path, device: str) -> None:
    stages = {"talker": StageConfig(), "thinker": StageConfig(device=device)}
    with pytest.raises(InvalidArgument, match=f"stages.thinker.device: .{device}. requires a GPU"):
        check_devices(stages, tmp_path)
    (tmp_path / "nvidia0").touch()
    check_devices(stages, tmp_path)


def test_a_launcher_takes_no_id_of_the_hub() -> None:
    with pytest.raises(NotFound, match="Qwen/Qwen3-Omni-30B-A3B-Instruct is not a directory;"):
        resolve(Deployment(model="Qwen/Qwen3-Omni-30B-A3B-Instruct"), application_root())


def test_a_path_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="is not a directory"):
        resolve(Deployment(model=str(tmp_path / "nowhere")), application_root())


@pytest.mark.parametrize(
    ("role", "config", "told"),
    [
        (
            "thinker",
            StageConfig(engine="tirch"),
            "stages.thinker.engine: unsupported engine 'tirch'; use one of: auto, torch, vllm",
        ),
        (
            "talker",
            StageConfig(engine="vllm"),
            "stages.talker.engine: unsupported engine 'vllm'; use one of: auto, torch",
        ),
        (
            "talker",
            StageConfig(device="cdua:1"),
            "stages.talker.device: unknown device 'cdua:1'; use cpu, cuda or cuda:N",
        ),
        (
            "talker",
            StageConfig(device="cuda:"),
            "stages.talker.device: unknown device 'cuda:'; use cpu, cuda or cuda:N",
        ),
    ],
)
def test_an_engine_or_a_device_that_does_not_exist_is_refused(
    role: str, config: StageConfig, told: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        check_engines({"code2wav": StageConfig(), role: config}, PIPELINE)
    assert refused.value.message == told
    assert told.startswith(f"{refused.value.field}: ")


@pytest.mark.parametrize("device", ["cpu", "cpu:0", "cuda", "cuda:12", "mps", "xpu:1"])
def test_engines_and_devices_that_exist_are_accepted(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "is_importable", lambda package: True)
    for role in PIPELINE.roles:
        for engine in ("auto", *PIPELINE.stage(role).engines):
            check_engines({role: StageConfig(engine=engine, device=device)}, PIPELINE)


def test_engine_whose_package_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "is_importable", lambda package: package != "vllm")
    with pytest.raises(FailedPrecondition, match="requires the package vllm") as refused:
        check_engines({"thinker": StageConfig(engine="vllm")}, PIPELINE)
    assert refused.value.field == "stages.thinker.engine"


def test_only_the_stage_checks_its_engine_when_its_pipeline_does_not_declare_any() -> None:
    stages = tuple(replace(each, engines=()) for each in PIPELINE.stages)
    pipeline = replace(PIPELINE, stages=stages)
    check_engines({"talker": StageConfig(engine="abacus", device="wood")}, pipeline)
