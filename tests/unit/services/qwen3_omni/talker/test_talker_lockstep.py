"""The code predictor's layers in lockstep: states as Hugging Face's, in any company."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from antiphon_services.lm.experts import LEAST_ROWS
from antiphon_services.lm.lockstep import Lockstep
from tests.unit.services.qwen3_omni.talker.talker_lab import Lab

SEQUENCES = 64
aten = torch.ops.aten


def make_rows(lab: Lab, count: int) -> Tensor:
    """[groups, count, width]: what each sequence is given, position by position."""
    generator = torch.Generator().manual_seed(3)
    return torch.randn(
        lab.shape.code_groups, SEQUENCES, lab.shape.talker_hidden, generator=generator
    )[:, :count]


def states_of(lockstep: Lockstep, rows: Tensor) -> Tensor:
    """[groups - 1, count, width] from position 1 on, whole."""
    states = [lockstep.begin(rows[0], rows[1]).clone()]
    later = range(2, len(rows))
    states += [lockstep.go_on(position, rows[position]).clone() for position in later]
    scale = lockstep.output_scale
    return torch.stack(states) if scale is None else torch.stack(states) * scale


def states_of_hugging_face(module: Any, rows: Tensor) -> Tensor:
    given = rows.transpose(0, 1)
    return module.model(inputs_embeds=given).last_hidden_state.transpose(0, 1)[1:]


@torch.inference_mode()
def test_states_are_hugging_faces(lab: Lab) -> None:
    module, rows = lab.model.talker.code_predictor, make_rows(lab, 5)
    lockstep = Lockstep(module.model, 7, lab.shape.code_groups)
    expected = states_of_hugging_face(module, rows)
    # What an earlier frame of other sequences has left does not matter.
    states_of(lockstep, make_rows(lab, 7).flip(1))
    torch.testing.assert_close(states_of(lockstep, rows), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("found_finite", [False, True])
@torch.inference_mode()
def test_states_are_the_same_behind_some_that_were_not_finite(
    lab: Lab, *, found_finite: bool
) -> None:
    module = lab.model.talker.code_predictor.model
    expected = states_of(Lockstep(module, 7, lab.shape.code_groups), make_rows(lab, 5))
    lockstep, spoilt = Lockstep(module, 7, lab.shape.code_groups), make_rows(lab, 7).clone()
    if found_finite:
        states_of(lockstep, make_rows(lab, 7))
        lockstep.found_finite()
    spoilt[1:, 2] = torch.nan
    assert states_of(lockstep, spoilt).isnan().any()
    assert torch.equal(states_of(lockstep, make_rows(lab, 5)), expected)


class ExactSums(TorchDispatchMode):
    """Products and attention are summed in float64 and rounded once: in which order a processor
    sums bfloat16 by itself depends on the shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.products = self.attended = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        packet = func.overloadpacket
        if packet in (aten.mm, aten.addmm, aten.bmm, aten.baddbmm):
            self.products += 1
            wide = {k: v for k, v in (kwargs or {}).items() if k != "out"}
            made.copy_(packet(*(each.double() for each in args), **wide))
        if packet is torch.ops.aten._scaled_dot_product_flash_attention_for_cpu:
            self.attended += 1
            queries, keys, values, *more = args
            options = dict(zip(("dropout_p", "is_causal"), more, strict=False)) | (kwargs or {})
            options["enable_gqa"] = queries.shape[1] != keys.shape[1]
            wide = (each.double() for each in (queries, keys, values))
            exact = torch.ops.aten._scaled_dot_product_attention_math(*wide, **options)
            made[0].copy_(exact[0])
        return made


@torch.no_grad()
def test_states_round_as_hugging_faces_when_in_bfloat16(lab: Lab) -> None:
    module = deepcopy(lab.model.talker.code_predictor).to(torch.bfloat16)
    rows = make_rows(lab, 5).to(torch.bfloat16)
    lockstep = Lockstep(module.model, 5, lab.shape.code_groups)
    with ExactSums() as of_mine:
        mine = states_of(lockstep, rows)
    with ExactSums() as of_hugging_face:
        expected = states_of_hugging_face(module, rows)
    for counted in (of_mine, of_hugging_face):
        assert counted.products
        assert counted.attended
    # All that is left to differ (norms, rotation, residual sums) rounds alike.
    assert torch.equal(mine, expected)


@pytest.mark.parametrize("count", [LEAST_ROWS, 5, 16, 37])
@torch.inference_mode()
def test_states_have_the_same_digits_in_any_company(lab: Lab, count: int) -> None:
    lockstep = Lockstep(lab.model.talker.code_predictor.model, SEQUENCES, lab.shape.code_groups)
    together = states_of(lockstep, make_rows(lab, SEQUENCES))
    assert torch.equal(states_of(lockstep, make_rows(lab, count)), together[:, :count])
