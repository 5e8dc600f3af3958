"""A form of `/v1/audio/transcriptions` to an order: every check that needs no stage."""

from __future__ import annotations

from antiphon.errors import NotImplementedYet
from antiphon.sampling import SamplingRequest
from gateway.calls.order import Order
from gateway.calls.transcribing import transcription_order
from gateway.doors.http.door import Visit
from gateway.doors.http.form_body import FORM
from gateway.doors.http.json_body import invalid
from gateway.doors.http.openapi import EVENTS, JSON, DoorMessages
from gateway.doors.transcribe.answer import TranscriptEvents, WholeTranscript
from gateway.doors.transcribe.schema import Transcription, TranscriptionForm
from gateway.media.audio_in import Recording

TRANSCRIBE = DoorMessages(
    "Writes down what a recording says.",
    TranscriptionForm,
    {JSON: Transcription, "text/plain": None, EVENTS: None},
    FORM,
)
_FORMATS = ("json", "text", "verbose_json")
_TIMED = ("srt", "vtt", "diarized_json")
_NO_TIMES = "the model tells neither times nor speakers"
# OpenAI's fields for what no model says here, and why.
_REFUSED = {
    "include": "only the text is told; leave it out",
    "timestamp_granularities": f"{_NO_TIMES}; leave it out",
    "chunking_strategy": "a recording is always heard as a whole; leave it out",
    "keywords": "name them in the prompt",
    "languages": "name one as the language, or several in the prompt",
    "known_speaker_names": f"{_NO_TIMES}; leave it out",
    "known_speaker_references": f"{_NO_TIMES}; leave it out",
}


def read_transcription(
    form: TranscriptionForm, visit: Visit
) -> tuple[Order, WholeTranscript | TranscriptEvents]:
    """Read a form. Raises `InvalidArgument` or `NotImplementedYet` with the field."""
    if not form.model:
        raise invalid("model", "is empty")
    for name, why in _REFUSED.items():
        if getattr(form, name):
            raise NotImplementedYet(f"{name}: is not supported; {why}", field=name)
    wanted = form.response_format
    if wanted in _TIMED:
        raise NotImplementedYet(
            f"response_format: {wanted!r} is not supported; {_NO_TIMES}, "
            f"so there are: {', '.join(_FORMATS)}",
            field="response_format",
        )
    if wanted not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise invalid("response_format", f"no format {wanted!r}; there are: {known}")
    if form.stream and wanted == "verbose_json":
        raise invalid("response_format", "verbose_json does not go with stream: true")
    order = transcription_order(
        Recording("file", form.file),
        visit.transcribe_instruction,
        model=form.model,
        language=form.language or "",
        prompt=form.prompt or "",
        sampling=SamplingRequest(temperature=form.temperature),
    )
    if form.stream:
        return order, TranscriptEvents()
    verbose = wanted == "verbose_json"
    plain = wanted == "text"
    return order, WholeTranscript(plain=plain, verbose=verbose, language=form.language or "")
