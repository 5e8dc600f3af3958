"""The layers compute what Hugging Face's compute, however the rows are split."""

from typing import Any

import pytest
import torch

from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.lm.attention import Span
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.kv_cache import KVCache
from tests.unit.services.qwen3_omni.talker.talker_lab import Lab

ROWS = 40


def load_talker(lab: Lab, dtype: torch.dtype) -> Any:
    return load_submodule(
        type(lab.model.talker),
        lab.model.config.talker_config,
        "talker.",
        Weights(lab.directory),
        dtype=dtype,
        device="cpu",
    )


def make_rows(module: Any, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    width = module.norm.weight.shape[0]
    return torch.randn(ROWS, width, generator=generator).to(dtype)


@torch.inference_mode()
def run_ours(module: Any, rows: torch.Tensor, pieces: list[int]) -> torch.Tensor:
    decoder = Decoder(module, ROWS, batch_invariant=True, exact_norms=False)
    cache = KVCache(decoder.shape, slots=3, positions=ROWS)
    slot, start, states = 1, 0, []
    for part in rows.split(pieces):
        plan = decoder.plan(cache, [Span(slot, start, len(part))])
        states.append(decoder.append(part, plan)[0][: len(part)])
        start += len(part)
    return torch.cat(states)


@torch.inference_mode()
def run_theirs(module: Any, rows: torch.Tensor) -> torch.Tensor:
    states: torch.Tensor = module(inputs_embeds=rows[None]).last_hidden_state[0]
    return states


@pytest.mark.parametrize("part", ["talker", "code predictor"])
@pytest.mark.parametrize("pieces", [[ROWS], [1] * ROWS, [3, 1, 20, 1, 15]])
def test_states_equal_hugging_face_when_rows_come_in_pieces(
    lab: Lab, part: str, pieces: list[int]
) -> None:
    talker = lab.model.talker
    module = talker.model if part == "talker" else talker.code_predictor.model
    rows = make_rows(module, torch.float32)
    expected = run_theirs(module, rows)
    torch.testing.assert_close(run_ours(module, rows, pieces), expected, rtol=0, atol=2e-5)


@pytest.mark.parametrize("part", ["talker", "code predictor"])
def test_states_round_as_hugging_face_when_in_bfloat16(lab: Lab, part: str) -> None:
    talker = load_talker(lab, torch.bfloat16)
    module = talker.model if part == "talker" else talker.code_predictor.model
    rows = make_rows(module, torch.bfloat16)
    differing = run_ours(module, rows, [ROWS]) != run_theirs(module, rows)
    # Alike where it counts (norms, rotation), so that only sums may round differently.
    assert differing.float().mean() < 0.02
