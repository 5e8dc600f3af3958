"""What a launch may not do: wait for the device, which may be at an earlier step."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from antiphon.errors import InvalidArgument
from antiphon.transport.device_edge import UNIT_BYTES, Staging, ToDevice, ToHost
from antiphon_services.lm.frames import FrameDraw, PromptPart
from antiphon_services.lm.graphs import Bucketing, Eager
from antiphon_services.lm.readback import Readback
from antiphon_services.qwen3_omni.talker.load import load
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.late_copies import LateCopies
from tests.unit.services.qwen3_omni.talker.talker_lab import SAMPLED, Lab


class CopiesAsked(TorchDispatchMode):
    """Notes of copies between devices whether the caller goes on meanwhile.

    To be used without inference mode, which hides what composite operations are made of.
    """

    def __init__(self) -> None:
        super().__init__()
        self.goes_on: list[bool] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, there = kwargs or {}, getattr(next(iter(args), None), "device", None)
        if func is torch.ops.aten._to_copy.default and kwargs.get("device", there) != there:
            self.goes_on.append(kwargs.get("non_blocking", False))
        elif func is torch.ops.aten.copy_.default and args[1].device != there:
            self.goes_on.append(len(args) > 2 and args[2])
        return func(*args, **kwargs)


@pytest.mark.parametrize("bucketing", [None, Eager])
@torch.no_grad()
def test_step_waits_for_nothing_when_it_is_launched(
    lab: Lab, bucketing: Bucketing | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It has no values, so that whoever asks for one gets an error.
    device = torch.device("meta")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 40, 1 << 40))
    words = lab.model.thinker.get_input_embeddings().weight
    copies = LateCopies()
    talker = Talker(
        deepcopy(lab.model.talker).to(device, torch.bfloat16),
        words,
        lab.special,
        code_entries=lab.stage.facts.code_entries,
        context_limit=300,
        slots=16,
        to_device=ToDevice(device, copies, Staging(2 * UNIT_BYTES, pinned=False)),
        readback=Readback(ToHost(copies, Staging(2 * UNIT_BYTES, pinned=False))),
        bucketing=bucketing,
    )
    turn, prompt = lab.turn(1, audio=4), talker.new_prompt()
    for chunk in turn.chunks():
        prompt.accept(chunk)
    asked = CopiesAsked()
    with asked, monkeypatch.context() as patch:
        # With a device it waits, out of sight of any mode.
        patch.delattr(torch, "tensor")
        slot = talker.take_slot("s", returns=False)
        draws = [
            FrameDraw(each, 7 * each, 30, replace(SAMPLED, top_k=each, top_p=0.9), each)
            for each in (2, 9, 12)
        ]
        talker.step([PromptPart(slot, 0, 20, prompt, turn.voice)], draws)
        talker.give_slot_back(slot, range(20))
    # Hidden rows there, and frames back.
    assert (copies.begun, copies.made) == (2, 0)
    assert 0 < len(asked.goes_on) <= 8
    assert all(asked.goes_on)


def test_load_is_refused_when_a_gpu_has_no_copies_beside_its_work(small: Lab) -> None:
    config = stage_config(device="cuda", launch_ahead=True, async_to_host=False)
    with pytest.raises(InvalidArgument, match=r"set copies\.async_to_host to true") as caught:
        load(small.directory, config)
    assert caught.value.field == "torch.launch_ahead"
