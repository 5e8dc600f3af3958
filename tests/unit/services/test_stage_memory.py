"""`memory` of every family: what a loaded stage allocates is what was known before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from antiphon.pipelines.ming_tts import LATENT_WIDTH, STEP_LATENTS
from antiphon.pipelines.registry import own_pipelines, pipeline_of
from antiphon.runtime.checkpoint.weights import WeightReader, Weights
from antiphon_services.flow.block_cache import BlockPages
from antiphon_services.lm.memory import SlotMemory
from antiphon_services.lm.tables import project_table
from antiphon_services.ming_tts.code2wav.decoder import AudioDecoder, LatentPiece
from antiphon_services.qwen3_omni.talker import rows as qwen3_omni_rows
from antiphon_services.qwen3_tts.talker import rows as qwen3_tts_rows
from antiphon_services.stage.loading import load_stage, stage_memory
from antiphon_services.vocoder.batch import StreamStates
from antiphon_testkit.cosyvoice3.tiny_checkpoint import build_tiny_cosyvoice
from antiphon_testkit.covo_audio.tiny_checkpoint import build_tiny_covo
from antiphon_testkit.dynin_omni.tiny_checkpoint import build_tiny_dynin
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.mimo_audio.tiny_checkpoint import build_nested_tiny_mimo
from antiphon_testkit.ming_flash_omni.flash_checkpoint import build_tiny_flash
from antiphon_testkit.ming_tts.tiny_checkpoint import build_tiny_ming
from antiphon_testkit.ming_tts.tiny_shape import FLASH, UNBOUNDED
from antiphon_testkit.qwen2_5_omni import tiny_checkpoint as omni25
from antiphon_testkit.qwen3_omni import tiny_checkpoint as omni3
from antiphon_testkit.qwen3_tts.tiny_checkpoint import build_tiny_tts
from antiphon_testkit.qwen3_tts.tiny_shape import BASE

CHECKPOINTS: dict[str, Callable[[Path], object]] = {
    "cosyvoice3": build_tiny_cosyvoice,
    "covo_audio": build_tiny_covo,
    "dynin_omni": build_tiny_dynin,
    "mimo_audio": build_nested_tiny_mimo,
    "ming_flash_omni": build_tiny_flash,
    "ming_tts": build_tiny_ming,
    "ming_tts-flash": partial(build_tiny_ming, shape=FLASH),
    "ming_tts-unbounded": partial(build_tiny_ming, shape=UNBOUNDED),
    "qwen2_5_omni": omni25.build_tiny_checkpoint,
    "qwen3_omni": omni3.build_tiny_checkpoint,
    "qwen3_tts": build_tiny_tts,
    "qwen3_tts-base": partial(build_tiny_tts, shape=BASE),
}
STAGES = [
    *((name, role) for name, family in own_pipelines().items() for role in family.roles),
    ("ming_tts-flash", "talker"),
    ("ming_tts-unbounded", "code2wav"),
    ("qwen3_tts-base", "talker"),
]
WORD_TABLE = "thinker.model.embed_tokens.weight"


@dataclass
class Allocated:
    """What a stage took while it loaded, seen where it allocates."""

    weights: int = 0
    tables: int = 0
    slots: list[SlotMemory] = field(default_factory=list)
    states: list[StreamStates] = field(default_factory=list)
    pages: list[BlockPages] = field(default_factory=list)
    decoders: list[AudioDecoder] = field(default_factory=list)


@pytest.fixture
def allocated(monkeypatch: pytest.MonkeyPatch) -> Allocated:
    """The record of the stage that the test loads."""
    found = Allocated()
    read_into, read = WeightReader.read_into, Weights.read

    def counted_into(reader: WeightReader, target: Tensor, name: str) -> None:
        found.weights += target.nbytes
        read_into(reader, target, name)

    def counted(weights: Weights, name: str) -> Tensor:
        tensor = read(weights, name)
        # The thinker's words are read to be projected, and are not kept.
        found.weights += tensor.numel() * 4 * (name != WORD_TABLE)
        return tensor

    monkeypatch.setattr(WeightReader, "read_into", counted_into)
    monkeypatch.setattr(Weights, "read", counted)
    for module in (qwen3_omni_rows, qwen3_tts_rows):
        monkeypatch.setattr(module, "project_table", counting_tables(found))
    record_made(monkeypatch, SlotMemory, found.slots)
    record_made(monkeypatch, StreamStates, found.states)
    record_made(monkeypatch, BlockPages, found.pages)
    record_made(monkeypatch, AudioDecoder, found.decoders)
    return found


def counting_tables(found: Allocated) -> Callable[..., Tensor]:
    def projected(*arguments: Any, **named: Any) -> Tensor:
        table = project_table(*arguments, **named)
        found.tables += table.nbytes
        return table

    return projected


def record_made(monkeypatch: pytest.MonkeyPatch, kind: type[Any], made: list[Any]) -> None:
    constructor = kind.__init__

    def recorded(self: Any, *arguments: Any, **named: Any) -> None:
        constructor(self, *arguments, **named)
        made.append(self)

    monkeypatch.setattr(kind, "__init__", recorded)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a tiny checkpoint by its name in `CHECKPOINTS`."""

    @cache
    def built(name: str) -> Path:
        folder = tmp_path_factory.mktemp("tiny") / name
        CHECKPOINTS[name](folder)
        return folder

    return built


@pytest.mark.parametrize(("name", "role"), STAGES)
def test_memory_of_a_stage_is_what_it_allocates_when_it_loads(
    name: str, role: str, checkpoint: Callable[[str], Path], allocated: Allocated
) -> None:
    folder = checkpoint(name)
    pipeline = pipeline_of(folder)
    config = stage_config(slots=3, flow_cache_bytes=50_000_000)
    memory = stage_memory(pipeline, role, folder, config)
    assert memory is not None
    stored = memory.stored_bytes
    assert not allocated.weights, "nothing is read before the stage loads"
    loaded = load_stage(pipeline, role, folder, config)
    assert memory.weights + memory.host_weights == allocated.weights + allocated.tables
    assert memory.tables * 4 == allocated.tables
    assert sum(stored.values()) > 0
    if memory.cached:
        assert memory.most == loaded.facts.context_limit
        slots = max(allocated.slots, key=lambda each: each.bytes)
        assert (slots.slots, slots.positions) == (3, memory.most)
        assert slots.position_bytes == memory.position_bytes
    if allocated.states:
        assert [3 * memory.session_state()] == [each.memory.nbytes for each in allocated.states]
    for pages in allocated.pages:
        taken = pages.memory.nbytes
        assert 0 < taken <= memory.shared < taken + pages.shape.page_bytes
    for decoder in allocated.decoders:
        assert memory.session_state() == _kept(decoder, loaded.facts.context_limit)


@torch.inference_mode()
def _kept(decoder: AudioDecoder, frames: int) -> int:
    """Bytes of keys and values of a stream after so many frames."""
    state = decoder.new_stream()
    latents = torch.zeros(frames * STEP_LATENTS, LATENT_WIDTH)
    [(_, state)] = decoder.advance([LatentPiece(state, latents, finished=True)])
    return sum(keys.nbytes + values.nbytes for keys, values in state.past)
