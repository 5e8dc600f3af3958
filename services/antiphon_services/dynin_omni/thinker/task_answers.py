"""Plans how the tokens of an answer are drawn.

The plan includes the unmasking steps, the tokens that may be drawn, guidance and end tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from antiphon.errors import InvalidArgument
from antiphon.pipelines.dynin_omni import IMAGE_ENTRIES, UNIT_ENTRIES
from antiphon.values.sampling import Sampling, SamplingRequest
from antiphon_services.diffusion.llada import Llada
from antiphon_services.diffusion.masked_answer import DrawnIds, Guidance, MaskedAnswer
from antiphon_services.diffusion.unmasking_plan import UnmaskingStep, block_steps, cosine_steps
from antiphon_services.dynin_omni.thinker.task_prompts import AnswerKind, MaskedPrompt
from antiphon_services.dynin_omni.thinker.task_request import AnswerRequest
from antiphon_services.dynin_omni.thinker.task_tokens import TaskTokens


class AnswerMaker:
    """Plans the answers of one model.

    `context_limit` is the maximum number of positions in an answer and its prompt.
    """

    def __init__(self, model: Llada, tokens: TaskTokens, context_limit: int) -> None:
        self._tokens, self._context_limit = tokens, context_limit
        units = range(tokens.first_unit, tokens.first_unit + UNIT_ENTRIES)
        image = range(tokens.first_image, tokens.first_image + IMAGE_ENTRIES)
        self._ends: Mapping[AnswerKind, tuple[int, ...]] = {
            AnswerKind.TEXT: (tokens.text_end, tokens.turn_end),
            AnswerKind.SPEECH: (tokens.eoa, tokens.text_end),
            AnswerKind.IMAGE: (),
        }
        self._drawn: Mapping[AnswerKind, DrawnIds] = {
            AnswerKind.TEXT: DrawnIds.any_but(model, tokens.mask),
            AnswerKind.SPEECH: DrawnIds.only(model, [*units, *self._ends[AnswerKind.SPEECH]]),
            AnswerKind.IMAGE: DrawnIds.only(model, image),
        }

    def ends(self, kind: AnswerKind) -> frozenset[int]:
        """Return the tokens that end an answer. They are not part of the answer."""
        return frozenset(self._ends[kind])

    def count(self, prompt: MaskedPrompt, asked: SamplingRequest) -> int:
        """Return the number of positions in the answer, which is at least 1.

        Raises `InvalidArgument` if there is no room for an answer after the prompt, or not enough
        room for an image.
        """
        room = self._context_limit - len(prompt.ids) - len(prompt.after)
        if asked.max_tokens is not None and asked.max_tokens < prompt.count:
            raise InvalidArgument(
                f"max_tokens: an image of this size has {prompt.count} tokens; increase the limit",
                field="max_tokens",
            )
        if room < max(1, prompt.count):
            raise InvalidArgument(
                f"messages: take {len(prompt.ids)} positions, which leaves no room for the "
                f"answer within the context limit of {self._context_limit}; shorten them",
                field="messages",
            )
        return prompt.count or min(asked.max_tokens or prompt.mode.count, room)

    def make(
        self,
        prompt: MaskedPrompt,
        request: AnswerRequest,
        sampling: Sampling,
        asked: SamplingRequest,
    ) -> MaskedAnswer:
        """Create an answer, without computing its first step.

        Options that are not set in `asked` default to the options of the task. Raises
        `InvalidArgument` if there isn't enough room for the answer after the prompt.
        """
        mode, kind, count = prompt.mode, prompt.mode.kind, self.count(prompt, asked)
        if asked.temperature is None:
            sampling = replace(sampling, temperature=mode.temperature)
        plan: tuple[UnmaskingStep, ...]
        if kind is AnswerKind.IMAGE:
            # Tokens are drawn at temperature 1. The temperature of the request only affects their
            # order.
            plan = cosine_steps(count, request.steps or mode.steps, sampling.temperature)
            sampling = replace(sampling, temperature=1.0)
        else:
            steps = request.steps or -(-count * mode.steps // mode.count)
            plan = block_steps(count, min(request.block or mode.block, count), steps)
        scale = mode.guidance if request.guidance is None else request.guidance
        guidance = None
        if scale:
            sees_answer = kind is not AnswerKind.SPEECH
            guidance = Guidance(scale, prompt.unguided, sees_answer=sees_answer)
        return MaskedAnswer(
            prompt.ids,
            plan,
            self._drawn[kind],
            sampling,
            mask_id=self._tokens.mask,
            after=prompt.after,
            guidance=guidance,
            tempered=kind is AnswerKind.SPEECH,
            ends=self._ends[kind],
            padding=prompt.padding,
        )
