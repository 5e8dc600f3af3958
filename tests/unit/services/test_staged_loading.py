"""Every family's stages load the numbers of their files through staged copies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.registry import pipeline_of
from antiphon.runtime.checkpoint.staged_copies import StagedCopies
from antiphon.runtime.checkpoint.weights import WeightReader, Weights
from antiphon_services.stage.loading import load_stage
from antiphon_testkit.cosyvoice3.tiny_checkpoint import build_tiny_cosyvoice
from antiphon_testkit.mimo_audio.tiny_checkpoint import build_nested_tiny_mimo
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.qwen2_5_omni import tiny_checkpoint as omni25
from antiphon_testkit.qwen3_omni import tiny_checkpoint as omni3
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from tests.late_device import LateDevice

torch.set_num_threads(1)
CPU = torch.device("cpu")
# Small beside most tensors, and no multiple of their sizes.
BUFFER_BYTES = 1000
FAMILIES: dict[str, Callable[[Path], None]] = {
    "qwen3_omni": omni3.build_tiny_checkpoint,
    "qwen2_5_omni": omni25.build_tiny_checkpoint,
    "qwen3_tts": build_tiny_tts,
    "cosyvoice3": build_tiny_cosyvoice,
    "mimo_audio": build_nested_tiny_mimo,
    "ming_tts": build_tiny_ming,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_stages_load_the_numbers_of_their_files(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FAMILIES[family](tmp_path / "checkpoint")
    pipeline = pipeline_of(tmp_path / "checkpoint")
    read: list[str] = []
    most_pending: list[int] = []

    @contextlib.contextmanager
    def open_staged(weights: Weights, device: object = CPU) -> Iterator[WeightReader]:
        filled: list[tuple[Tensor, str]] = []

        class Reader(WeightReader):
            def read_into(self, target: Tensor, name: str) -> None:
                super().read_into(target, name)
                filled.append((target, name))

        with monkeypatch.context() as patch:
            late = LateDevice(patch)
            copies = StagedCopies(
                CPU, buffer_bytes=BUFFER_BYTES, pinned=False, new_event=late.new_event
            )
            with Reader(weights, copies) as reader:
                yield reader
            assert late.pending == []
            most_pending.append(late.most_pending)
        with WeightReader(weights, None) as plain:
            for target, name in filled:
                assert torch.equal(target, plain.read(name).to(target.dtype)), name
        read.extend(name for _, name in filled)

    monkeypatch.setattr(Weights, "open", open_staged)
    loaded_by: dict[str, int] = {}
    for stage in pipeline.stages:
        before = len(read)
        load_stage(pipeline, stage.role, tmp_path / "checkpoint", StageConfig(slots=1))
        loaded_by[stage.role] = len(read) - before
    assert all(count > 10 for count in loaded_by.values()), loaded_by
    assert max(most_pending) == 2
