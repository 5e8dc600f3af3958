"""Asks the model to transcribe a recording. The request is a user message that contains the
recording and an instruction, unless the model has an option for this task.
"""

from __future__ import annotations

from collections.abc import Iterable

from antiphon.values.conversation import ConversationMessage, Part, TextPart
from antiphon.values.options import TASK, TRANSCRIPTION, Option, does_task
from antiphon.values.sampling import INPUT_STAGE, SamplingRequest
from antiphon_gateway.media.attachments import Attachments
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.orders.order import Order
from antiphon_gateway.outputs import TEXT


def transcription_order(
    recording: Recording,
    instruction: str,
    *,
    model: str = "",
    language: str = "",
    prompt: str = "",
    sampling: SamplingRequest | None = None,
    model_options: Iterable[Option] = (),
) -> Order:
    """Return an order for a transcript of a recording.

    `language` is the language of the recording, and `prompt` provides additional context. If the
    transcription task is one of the `model_options`, `instruction` isn't used.
    """
    by_task = does_task(model_options, TRANSCRIPTION)
    asked = [] if by_task else [instruction]
    asked += [f"The language is {language}."] if language else []
    asked += [f"What is known of it: {prompt}"] if prompt else []
    attachments = Attachments()
    parts: tuple[Part, ...] = (attachments.add_recording(recording),)
    if asked:
        parts = (*parts, TextPart("\n".join(asked)))
    return Order(
        messages=(ConversationMessage("user", parts),),
        attachments=attachments,
        model=model,
        outputs=frozenset({TEXT}),
        sampling={INPUT_STAGE: sampling or SamplingRequest()},
        options={TASK: TRANSCRIPTION} if by_task else {},
        field_names={"modalities": "model", "messages": "model"},
    )
