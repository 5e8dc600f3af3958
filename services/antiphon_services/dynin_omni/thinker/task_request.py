"""Parses the options of a request and rejects invalid combinations. Does not import torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.pipelines.dynin_omni import BLOCK, GUIDANCE, IMAGE_TOKENS, STEPS, TEXT, UNITS
from antiphon.values.options import DIALOGUE, IMAGE, SIZE, SPEECH, TASK, OptionValue
from antiphon.values.sampling import Sampling

MADE_OF: Mapping[str, str] = {SPEECH: UNITS, IMAGE: IMAGE_TOKENS}
"""The output edge of each task. Tasks that are not listed generate text."""
ASK_FOR: Mapping[str, str] = {UNITS: "audio", IMAGE_TOKENS: "images"}


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """The task and its options.

    `speaks` is true if the client requested speech. Options that are not set are empty, 0 or None.
    """

    task: str
    speaks: bool
    size: str
    steps: int
    block: int
    guidance: float | None


def read_answer_request(
    options: Mapping[str, OptionValue], outputs: Collection[str]
) -> AnswerRequest:
    """Parse the options and the requested output edges.

    Raises `InvalidArgument` if the options cannot be combined.
    """
    task = str(options.get(TASK) or "").casefold()
    if not task:
        task = IMAGE if IMAGE_TOKENS in outputs else DIALOGUE
    made = MADE_OF.get(task)
    if made is not None and made not in outputs:
        raise _refused(TASK, f"{task} does not generate text; request {ASK_FOR[made]}")
    if task not in (IMAGE, SPEECH) and not {TEXT, UNITS} & set(outputs):
        raise _refused(TASK, f"{task} does not generate images; set it to {IMAGE}, or request text")
    size = str(options.get(SIZE) or "")
    if size and task != IMAGE:
        raise _refused(SIZE, f"is only supported with {TASK} {IMAGE}; leave it out")
    block = _whole(options, BLOCK)
    if block and task == IMAGE:
        raise _refused(
            BLOCK,
            "can't be used for images, because all positions of an image are generated "
            "together; leave it out",
        )
    guidance = options.get(GUIDANCE)
    return AnswerRequest(
        task,
        UNITS in outputs,
        size,
        _whole(options, STEPS),
        block,
        float(guidance) if isinstance(guidance, int | float) else None,
    )


def check_masked_sampling(sampling: Sampling) -> None:
    """Raise `NotImplementedYet` if a sampling option does not apply to masked diffusion."""
    for name, given in (
        ("json_schema", sampling.json_schema is not None),
        ("top_logprobs", sampling.top_logprobs is not None),
        ("repetition_penalty", sampling.repetition_penalty != 1.0),
    ):
        if given:
            raise NotImplementedYet(
                f"{name}: is not supported, because this model generates positions in any "
                "order; leave it out",
                field=name,
            )


def _whole(options: Mapping[str, OptionValue], name: str) -> int:
    """Return the option as an integer, or 0 if it is not set."""
    number = options.get(name, 0.0)
    if not isinstance(number, int | float) or number != int(number):
        raise _refused(name, "must be an integer")
    return int(number)


def _refused(name: str, why: str) -> InvalidArgument:
    field = f"options.{name}"
    return InvalidArgument(f"{field}: {why}", field=field)
