"""What a step of each engine asks its device for at the released depths; bounds that only fall."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon_services.lm import attention, attention_calls
from antiphon_services.lm.memory import WORKING_BYTES
from antiphon_services.thinker.model import ThinkerFeed
from antiphon_testkit.launches import launches_on_meta, meta_as_a_gpu
from benchmarks.operations import families, models

NONE = np.empty(0, np.intp)


def test_thinker_whose_slots_do_not_fit_a_gpu_at_their_longest_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with meta_as_a_gpu() as device:
        memory = models.omni3_thinker(device, slots=16).memory
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (WORKING_BYTES + room, 0))
        room = memory.bytes
        models.omni3_thinker(device, slots=16)
        room -= 1
        with pytest.raises(InvalidArgument, match=r"enough for 15 slots"):
            models.omni3_thinker(device, slots=16)


def feed(slot: int, start: int, count: int) -> ThinkerFeed:
    return ThinkerFeed(slot, start, np.full(count, 30, np.int32), NONE, sampled=True)


@pytest.mark.parametrize(("sessions", "most"), [(1, 1496), (16, 1500)])
def test_thinker_waits_for_nothing_when_it_decodes(sessions: int, most: int) -> None:
    with meta_as_a_gpu() as device:
        thinker = models.omni3_thinker(device, slots=sessions)
        with launches_on_meta() as launches:
            thinker.forward([feed(slot, 20 + slot, 1) for slot in range(sessions)])
    assert launches.waits == launches.on_host == []
    assert 10 * models.OMNI3.layers < launches.total <= most, launches.counts


@pytest.mark.parametrize(("flash", "most"), [(False, 1648), (True, 1644)])
def test_thinker_waits_for_nothing_when_prompts_go_on(
    monkeypatch: pytest.MonkeyPatch, flash: bool, most: int
) -> None:
    for module in (attention, attention_calls):
        monkeypatch.setattr(module, "flash_takes", lambda shape: flash)
    with meta_as_a_gpu() as device:
        thinker = models.omni3_thinker(device, slots=4)
        with launches_on_meta() as launches:
            thinker.forward([feed(0, 20, 1), feed(1, 21, 1), feed(2, 100, 40), feed(3, 0, 30)])
    assert launches.waits == launches.on_host == []
    assert 10 * models.OMNI3.layers < launches.total <= most, launches.counts
    taken = launches.counts["aten._scaled_dot_product_flash_attention.default"]
    assert taken == (models.OMNI3.layers if flash else 0), launches.counts


@pytest.mark.parametrize(("heard", "most"), [(False, 1644), (True, 1647)])
def test_thinker_waits_for_nothing_when_prompts_go_in(heard: bool, most: int) -> None:
    with meta_as_a_gpu() as device:
        thinker = models.omni3_thinker(device, slots=4)
        prompts = [feed(2, 0, 40), feed(3, 0, 30)]
        if heard:
            ids = prompts[0].ids.copy()
            ids[10:20] = SpecialIds.from_config(models.omni3_config().to_dict()).audio
            rows = torch.zeros(10, models.OMNI3.hidden, dtype=torch.bfloat16, device=device)
            prompts[0] = replace(prompts[0], ids=ids, tapped=np.arange(10, 20), media=rows)
        with launches_on_meta() as launches:
            thinker.forward([feed(0, 20, 1), feed(1, 21, 1), *prompts])
    assert launches.waits == launches.on_host == []
    assert 10 * models.OMNI3.layers < launches.total <= most, launches.counts


@pytest.mark.parametrize(("sessions", "most"), [(1, 652), (16, 856)])
def test_code2wav_waits_for_nothing_when_it_decodes(sessions: int, most: int) -> None:
    with meta_as_a_gpu() as device:
        step = families.code2wav_step(models.omni3_code2wav(device), sessions)
        with launches_on_meta() as launches:
            step(sessions, 0)
    assert launches.waits == launches.on_host == []
    assert 100 < launches.total <= most, launches.counts


def test_waits_and_operands_of_the_host_are_found_when_there_are_any() -> None:
    rows, here = torch.zeros(3, device="meta"), torch.zeros(3)
    with launches_on_meta() as launches:
        rows.copy_(here)
        here.to("meta")
        here.to("meta", non_blocking=True)
        rows.copy_(here, non_blocking=True)
        rows[torch.tensor([0, 1])] + 1
        with pytest.raises(RuntimeError):
            rows.tolist()
    assert len(launches.waits) == 2
    assert len(launches.on_host) == 1
