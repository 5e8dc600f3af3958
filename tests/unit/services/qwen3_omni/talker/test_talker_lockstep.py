"""The code predictor's layers in lockstep: states as Hugging Face's, in any company."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from talker_lab import Lab
from torch import Tensor

from services.lm.experts import LEAST_ROWS
from services.lm.lockstep import Lockstep

SEQUENCES = 64


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


@torch.inference_mode()
def test_states_round_as_hugging_faces_when_in_bfloat16(lab: Lab) -> None:
    module = deepcopy(lab.model.talker.code_predictor).to(torch.bfloat16)
    rows = make_rows(lab, 5).to(torch.bfloat16)
    mine = states_of(Lockstep(module.model, 5, lab.shape.code_groups), rows)
    differing = mine != states_of_hugging_face(module, rows)
    # Alike where it counts (norms, rotation), so that only sums may round differently.
    assert differing.float().mean() < 0.02


@pytest.mark.parametrize("count", [LEAST_ROWS, 5, 16, 37])
@torch.inference_mode()
def test_states_have_the_same_digits_in_any_company(lab: Lab, count: int) -> None:
    lockstep = Lockstep(lab.model.talker.code_predictor.model, SEQUENCES, lab.shape.code_groups)
    together = states_of(lockstep, make_rows(lab, SEQUENCES))
    assert torch.equal(states_of(lockstep, make_rows(lab, count)), together[:, :count])
