"""How many operations a frame is at the released depths: a bound that only falls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from talker_lab import SAMPLED
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeTalkerForConditionalGeneration,
)

from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.transport.device_edge import UNIT_BYTES, Staging, ToHost
from antiphon_services.lm.frames import FrameDraw
from antiphon_services.lm.readback import Readback
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_testkit.late_copies import LateCopies
from antiphon_testkit.launches import launches_on_meta
from antiphon_testkit.qwen3_omni.tiny_config import make_config
from antiphon_testkit.qwen3_omni.tiny_shape import SMALL
from antiphon_testkit.qwen3_omni.tiny_tokenizer import TOKENIZER

# The numbers of layers and groups are the released checkpoint's; widths do not count.
SHAPE = replace(SMALL, talker_layers=20, code_groups=16, predictor_layers=5)
MOST_OPERATIONS = 2396


@pytest.mark.parametrize("sessions", [4, 16])
@torch.no_grad()
def test_frame_takes_no_more_operations_than_it_did(
    tmp_path: Path, sessions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = torch.device("meta")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    config: Any = make_config(SHAPE, TOKENIZER.write(tmp_path))
    special = SpecialIds.from_config(config.to_dict())
    with device:
        module = Qwen3OmniMoeTalkerForConditionalGeneration(config.talker_config)
    talker = Talker(
        module.to(torch.bfloat16),
        torch.zeros(special.tts_eos + 1, SHAPE.hidden),
        special,
        code_entries=SHAPE.talker_vocabulary,
        context_limit=300,
        slots=16,
        readback=Readback(ToHost(LateCopies(), Staging(2 * UNIT_BYTES, pinned=False))),
    )
    draws = [
        FrameDraw(slot, 40 + slot, 30, replace(SAMPLED, seed=slot), 3) for slot in range(sessions)
    ]
    with launches_on_meta() as launches:
        talker.step([], draws)
    # Each layer is seen.
    assert launches.total - launches.counts.total() > 2 * (
        SHAPE.talker_layers + 15 * SHAPE.predictor_layers
    )
    assert launches.waits == launches.on_host == []
    assert launches.total <= MOST_OPERATIONS, launches.counts
