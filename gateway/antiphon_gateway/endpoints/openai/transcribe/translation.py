"""The `/v1/audio/translations` endpoint. It asks the model for a transcript in English."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon_gateway.endpoints.http.fields import Unsupported
from antiphon_gateway.endpoints.http.form_body import FORM
from antiphon_gateway.endpoints.http.json_body import invalid
from antiphon_gateway.endpoints.openai.endpoint import (
    EVENTS,
    JSON,
    EndpointMessages,
    FormEndpoint,
    RequestContext,
)
from antiphon_gateway.endpoints.openai.transcribe.answer import (
    TranscriptEvents,
    WholeTranscript,
    checked_format,
)
from antiphon_gateway.endpoints.openai.transcribe.schema import TranscriptForm, Transcription
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.transcribing import transcription_order

INSTRUCTION = "Translate what the audio says into English. Answer with the translation alone."
LANGUAGE = "english"
"""OpenAI's name for the language of every translation."""
UNSUPPORTED: Mapping[str, Unsupported] = {
    # These are fields of vLLM.
    "language": Unsupported(
        remedy=("the model detects the language; to specify it, put it into the prompt")
    ),
    "to_language": Unsupported(
        ("en",),
        "only translation to English is supported; use a chat to translate to other languages",
    ),
}
"""Fields that are known but not supported."""


class TranslationForm(TranscriptForm, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A request. `prompt` provides context for the recording."""


def read_translation(
    form: TranslationForm, visit: RequestContext
) -> tuple[Order, WholeTranscript | TranscriptEvents]:
    """Read a form. If a field is invalid, `InvalidArgument` is raised with that field."""
    if not form.model:
        raise invalid("model", "is empty")
    wanted = checked_format(form.response_format, streamed=bool(form.stream))
    order = transcription_order(
        Recording("file", form.file),
        INSTRUCTION,
        model=form.model,
        prompt=form.prompt or "",
        sampling=form.sampling(wanted),
    )
    if form.stream:
        return order, TranscriptEvents()
    return order, WholeTranscript(wanted, LANGUAGE, form.temperature, task="translate")


TRANSLATIONS = FormEndpoint(
    "/v1/audio/translations",
    TranslationForm,
    read_translation,
    EndpointMessages(
        "Translates speech in a recording to English.",
        TranslationForm,
        {JSON: Transcription, "text/plain": None, "text/vtt": None, EVENTS: None},
        FORM,
        {"model": "MODEL", "file": "@recording.wav"},
    ),
    UNSUPPORTED,
)
