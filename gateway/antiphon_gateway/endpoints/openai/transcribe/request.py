"""Converts a form for `/v1/audio/transcriptions` to an order. All checks that don't depend on a
stage are done here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from antiphon.errors import NotImplementedYet
from antiphon_gateway.endpoints.http.fields import Unsupported, check_unsupported
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
    FORMATS,
    TranscriptEvents,
    WholeTranscript,
    checked_format,
)
from antiphon_gateway.endpoints.openai.transcribe.schema import Transcription, TranscriptionForm
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.orders.order import Order
from antiphon_gateway.orders.transcribing import transcription_order

_DIARIZED = "diarized_json"
_NO_SPEAKERS = "the model can't distinguish speakers"
_GRANULARITIES = ("segment", "word")
UNSUPPORTED: Mapping[str, Unsupported] = {
    # Fields of OpenAI's API for which no supported model provides any data.
    "include": Unsupported(remedy="only the text is returned; leave it out"),
    "chunking_strategy": Unsupported(("auto",), "recordings are never split; leave it out"),
    "keywords": Unsupported(remedy="put names into the prompt"),
    "languages": Unsupported(remedy="set language, or list several languages in the prompt"),
    "known_speaker_names": Unsupported(remedy=f"{_NO_SPEAKERS}; leave it out"),
    "known_speaker_references": Unsupported(remedy=f"{_NO_SPEAKERS}; leave it out"),
    # Fields of vLLM and other servers.
    "to_language": Unsupported(remedy="to translate, use /v1/audio/translations or a chat"),
    "task": Unsupported(("transcribe",), "to translate, use /v1/audio/translations"),
    "frequency_penalty": Unsupported(("0", "0.0")),
    "presence_penalty": Unsupported(("0", "0.0")),
    "min_p": Unsupported(("0", "0.0")),
    "stream_include_usage": Unsupported(any_value=True),
    "stream_continuous_usage_stats": Unsupported(any_value=True),
}
"""Fields that are known but not supported."""


def read_transcription(
    form: TranscriptionForm, visit: RequestContext
) -> tuple[Order, WholeTranscript | TranscriptEvents]:
    """Parse a form. Raises `InvalidArgument` or `NotImplementedYet` with the field."""
    if not form.model:
        raise invalid("model", "is empty")
    check_unsupported(form, UNSUPPORTED)
    language = form.language if form.language and form.language.lower() != "auto" else ""
    if form.response_format.strip().lower() == _DIARIZED:
        raise NotImplementedYet(
            f"response_format: {_DIARIZED!r} is not supported; {_NO_SPEAKERS}; "
            f"use one of: {', '.join(FORMATS)}",
            field="response_format",
        )
    wanted = checked_format(form.response_format, streamed=bool(form.stream))
    _check_granularities(form.timestamp_granularities)
    order = transcription_order(
        Recording("file", form.file),
        visit.transcribe_instruction,
        model=form.model,
        language=language,
        prompt=form.prompt or "",
        sampling=form.sampling(wanted),
        model_options=visit.options,
    )
    if form.stream:
        return order, TranscriptEvents()
    return order, WholeTranscript(wanted, language, form.temperature)


def _check_granularities(granularities: Iterable[str]) -> None:
    """Raise an error if the value is invalid or if the requested timestamps aren't available."""
    for each in granularities:
        if each == "word":
            raise NotImplementedYet(
                "timestamp_granularities: the model doesn't report word timestamps; use "
                "'segment', or leave it out",
                field="timestamp_granularities",
            )
        if each not in _GRANULARITIES:
            known = ", ".join(_GRANULARITIES)
            raise invalid("timestamp_granularities", f"unknown value {each!r}; use one of: {known}")


TRANSCRIPTIONS = FormEndpoint(
    "/v1/audio/transcriptions",
    TranscriptionForm,
    read_transcription,
    EndpointMessages(
        "Transcribes a recording.",
        TranscriptionForm,
        {JSON: Transcription, "text/plain": None, "text/vtt": None, EVENTS: None},
        FORM,
        {"model": "MODEL", "file": "@recording.wav"},
    ),
    UNSUPPORTED,
)
