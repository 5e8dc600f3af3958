"""Answers of the recorded cases on a tiny model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from antiphon.values.sampling import Sampling
from antiphon_services.diffusion.llada import Llada
from antiphon_services.diffusion.masked_answer import (
    DrawnIds,
    Guidance,
    MaskedAnswer,
    sequence_rows,
)
from antiphon_services.diffusion.unmasking_plan import block_steps, cosine_steps
from antiphon_testkit import tiny_llada as tiny
from tests.equality.masked_diffusion.diffusion_cases import (
    IMAGE,
    SPEECH,
    TEXT,
    DiffusionCase,
)


@dataclass(frozen=True)
class Lab:
    """A loaded model and what may be drawn, by kind."""

    model: Llada
    drawn: dict[str, DrawnIds]

    def answer(self, case: DiffusionCase, ends: Sequence[int] = ()) -> MaskedAnswer:
        """Return the answer of a case before its first step."""
        drawn = self.drawn[case.kind]
        if case.kind == IMAGE:
            plan = cosine_steps(case.count, case.steps, case.temperature)
            sampling = sampled(1.0, case.key)
        else:
            plan = block_steps(case.count, case.block, case.steps)
            sampling = sampled(case.temperature, case.key)
        guidance = None
        if case.guidance:
            guidance = {
                TEXT: Guidance(case.guidance, [tiny.MASK] * case.prompt),
                SPEECH: Guidance(case.guidance, case.prompt_ids, sees_answer=False),
                IMAGE: Guidance(case.guidance, case.unguided_ids),
            }[case.kind]
        return MaskedAnswer(
            case.prompt_ids,
            plan,
            drawn,
            sampling,
            mask_id=tiny.MASK,
            after=[tiny.END_OF_IMAGE] if case.kind == IMAGE else (),
            guidance=guidance,
            tempered=case.kind == SPEECH,
            ends=ends,
        )


def sampled(temperature: float, key: int) -> Sampling:
    """Draws from all ids."""
    return Sampling(
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        repetition_penalty=1.0,
        seed=key,
        max_tokens=1,
    )


def finish(lab: Lab, *answers: MaskedAnswer) -> None:
    """Take all steps, together."""
    while left := [each for each in answers if not each.done]:
        take_step(lab, *left)


def take_step(lab: Lab, *answers: MaskedAnswer) -> None:
    """The next step of each answer, in one call of the model."""
    with torch.inference_mode():
        for answer, rows in zip(answers, sequence_rows(lab.model, answers), strict=True):
            answer.advance(rows)


def delivered(case: DiffusionCase, ids: torch.Tensor) -> list[int]:
    """What the vendor's code returns for these ids."""
    made = ids.tolist()
    if case.kind == SPEECH:
        ends = [at for at, each in enumerate(made) if each < tiny.TEXT_IDS]
        return [each - tiny.FIRST_UNIT for each in made[: ends[0] if ends else None]]
    return made if case.kind == TEXT else [each - tiny.FIRST_IMAGE for each in made]
