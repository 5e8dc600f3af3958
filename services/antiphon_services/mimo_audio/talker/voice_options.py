"""Parses the options of a request and rejects invalid combinations. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.pipelines.mimo_audio import YES
from antiphon.values.chunk import Tensor
from antiphon.values.options import DIALOGUE, SPEECH, TASK, OptionValue
from antiphon.values.sampling import Sampling

CODE_TEMPERATURE, CODE_TOP_P = 0.9, 0.95
"""The vendor's sampling settings for codes. They are the same for all tasks."""


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """The task and its options.

    The voice is that of a `reference` recording. `instruction` describes how to speak. `described`
    is true if the text itself describes how to speak. `thinking` enables thinking. Codes have their
    own temperature and `top_p`.
    """

    task: str
    reference: Tensor | None
    instruction: str
    described: bool
    thinking: bool
    code_temperature: float
    code_top_p: float

    def code_sampling(self, sampling: Sampling) -> Sampling:
        """Return the sampling of codes for a segment with the given text sampling."""
        return replace(
            sampling,
            temperature=self.code_temperature,
            top_p=self.code_top_p,
            top_k=0,
            repetition_penalty=1.0,
        )


def read_request(options: Mapping[str, OptionValue], *, speaks: bool) -> TaskRequest:
    """Parse the options. Raises `InvalidArgument` if they cannot be combined."""

    def text(name: str) -> str:
        return str(options.get(name) or "")

    def number(name: str, default: float) -> float:
        value = options.get(name)
        return float(value) if isinstance(value, int | float) else default

    task = text(TASK).casefold() or DIALOGUE
    reference = options.get("reference_audio")
    request = TaskRequest(
        task=task,
        reference=None if reference is None or isinstance(reference, str | float) else reference,
        instruction=text("instruction"),
        described=text("described").casefold() == YES,
        thinking=text("thinking").casefold() == YES,
        code_temperature=number("code_temperature", CODE_TEMPERATURE),
        code_top_p=number("code_top_p", CODE_TOP_P),
    )
    if task != SPEECH:
        for name, given in (
            ("instruction", bool(request.instruction)),
            ("described", request.described),
        ):
            if given:
                raise _refused(name, f"is only supported with {TASK} {SPEECH}; leave it out")
    elif request.described and request.instruction:
        raise _refused(
            "instruction",
            "can't be combined with a text that describes how to speak it; set only one of them",
        )
    elif request.reference is not None and not (request.described or request.instruction):
        raise _refused(
            "reference_audio",
            "requires options.instruction, because the model can't use a voice without one; set it",
        )
    if request.thinking and (task != DIALOGUE or speaks):
        raise _refused(
            "thinking", "is only supported for answers in text; request only text, or leave it out"
        )
    if request.reference is not None and not (speaks or task == SPEECH):
        raise _refused("reference_audio", "requires speech; request audio, or leave it out")
    return request


def check_sampling(sampling: Sampling) -> None:
    """Raise `NotImplementedYet` if the engine does not support a sampling setting."""
    if sampling.json_schema is not None:
        raise NotImplementedYet(
            "json_schema: this model's text can't be restricted to a schema; leave it out",
            field="json_schema",
        )


def _refused(name: str, why: str) -> InvalidArgument:
    field = f"options.{name}"
    return InvalidArgument(f"{field}: {why}", field=field)
