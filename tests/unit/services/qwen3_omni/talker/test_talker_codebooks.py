"""Residual codes: whose logits, which settings and which draws."""

from dataclasses import replace

import pytest
import torch

from antiphon.values.sampling import Sampling
from antiphon_services.lm.codebooks import CodePredictor, predictor_sampling
from antiphon_services.lm.sampler import SamplingRows, choose, uniform_each
from antiphon_services.qwen3_omni.talker.model import PREDICTOR_SAMPLING
from tests.unit.services.qwen3_omni.talker.talker_lab import GREEDY, SAMPLED, Lab

SESSIONS = 5


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_frame_equals_draws_from_hugging_faces_logits_when_keyed_by_step_and_group(
    lab: Lab, sampling: Sampling
) -> None:
    module, step, first = lab.model.talker.code_predictor, 5, 3
    groups = lab.shape.code_groups
    drawn_with = predictor_sampling(sampling, PREDICTOR_SAMPLING)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(1, lab.shape.talker_hidden, generator=generator)
    embedding = lab.model.talker.model.codec_embedding.weight[first, None]
    with torch.inference_mode():
        settings = SamplingRows.of([drawn_with] * SESSIONS, hidden.device)
        numbers = uniform_each([drawn_with.seed] * SESSIONS, [step] * SESSIONS, groups)
        frames, sums, decided = CodePredictor(module, SESSIONS, PREDICTOR_SAMPLING).frames(
            hidden.expand(SESSIONS, -1),
            torch.full((SESSIONS,), first),
            embedding.expand(SESSIONS, -1),
            settings,
            torch.from_numpy(numbers),
        )
        rows = [hidden, embedding]
        codes = [first]
        for group in range(1, groups):
            logits = module(inputs_embeds=torch.cat(rows)[None]).logits[0, -1]
            codes.append(choose(logits, drawn_with, step=step, group=group))
            rows.append(module.model.codec_embedding[group - 1].weight[codes[-1], None])
    assert decided.all()
    assert frames.tolist() == [codes] * SESSIONS
    torch.testing.assert_close(sums, torch.stack(rows[1:]).sum(0).expand(SESSIONS, -1))


def test_code_predictor_samples_as_hugging_face_when_the_talker_does() -> None:
    drawn_with = predictor_sampling(replace(SAMPLED, temperature=0.3, top_k=7), PREDICTOR_SAMPLING)
    assert (drawn_with.temperature, drawn_with.top_k, drawn_with.top_p) == (1.0, 50, 0.8)
    assert drawn_with.repetition_penalty == 1.0
    assert drawn_with.seed == SAMPLED.seed
    assert predictor_sampling(GREEDY, PREDICTOR_SAMPLING).greedy
