"""Asking the model what a recording says: a user message with the recording and an instruction."""

from __future__ import annotations

from antiphon.conversation import ConversationMessage, TextPart
from antiphon.sampling import INPUT_STAGE, SamplingRequest
from gateway.calls.order import Order
from gateway.media.attachments import Attachments
from gateway.media.audio_in import Recording
from gateway.outputs import TEXT


def transcription_order(
    recording: Recording,
    instruction: str,
    *,
    model: str = "",
    language: str = "",
    prompt: str = "",
    sampling: SamplingRequest | None = None,
) -> Order:
    """The order whose text is what the recording says, as far as the model hears it.

    `language` is that of the recording, `prompt` what else is known of it.
    """
    asked = [instruction]
    asked += [f"The language is {language}."] if language else []
    asked += [f"What is known of it: {prompt}"] if prompt else []
    attachments = Attachments()
    heard = attachments.add_recording(recording)
    return Order(
        messages=(ConversationMessage("user", (heard, TextPart("\n".join(asked)))),),
        attachments=attachments,
        model=model,
        outputs=frozenset({TEXT}),
        sampling={INPUT_STAGE: sampling or SamplingRequest()},
        field_names={"modalities": "model", "messages": "model"},
    )
