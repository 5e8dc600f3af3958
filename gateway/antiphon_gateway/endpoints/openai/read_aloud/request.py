"""Converts a request to `/v1/audio/speech` to an order. All checks that don't depend on a stage are
done here.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.errors import NotImplementedYet
from antiphon.values.conversation import ConversationMessage, TextPart
from antiphon.values.options import SPEECH as SPEECH_TASK
from antiphon.values.options import TASK, does_task
from antiphon.values.sampling import INPUT_STAGE
from antiphon.values.segment import Delivery
from antiphon_gateway.endpoints.http.fields import Unsupported, decode_fields
from antiphon_gateway.endpoints.http.json_body import invalid
from antiphon_gateway.endpoints.http.language import language_choice
from antiphon_gateway.endpoints.http.options import options_from_json, options_outside
from antiphon_gateway.endpoints.http.stage_sampling import (
    body_decoder,
    sampling_request,
    stage_sampling,
    without_sampling,
)
from antiphon_gateway.endpoints.http.voice import voice_name
from antiphon_gateway.endpoints.openai.chunk_policy import read_chunk_policy
from antiphon_gateway.endpoints.openai.endpoint import (
    EVENTS,
    EndpointMessages,
    JsonEndpoint,
    RequestContext,
)
from antiphon_gateway.endpoints.openai.read_aloud.answer import AudioBytes, AudioEvents
from antiphon_gateway.endpoints.openai.read_aloud.schema import DEFAULT_FORMAT, SpeechBody
from antiphon_gateway.media.audio_formats import FORMATS
from antiphon_gateway.media.audio_in import Recording
from antiphon_gateway.media.data_url import data_or_url
from antiphon_gateway.media.encoding import (
    AudioEncoding,
    check_format,
    check_speed,
    leaves_whole,
)
from antiphon_gateway.media.options_in import OptionInput
from antiphon_gateway.media.remote import RemoteUrl
from antiphon_gateway.orders.order import Order, names_of_text
from antiphon_gateway.outputs import AUDIO

UNSUPPORTED: Mapping[str, Unsupported] = {
    # The checkpoint determines which tasks are available.
    "task_type": Unsupported(any_value=True),
    "max_new_tokens": Unsupported(remedy="use max_tokens"),
    "x_vector_only_mode": Unsupported((False,)),
    "reference_audio": Unsupported(remedy="send ref_audio"),
    "reference_text": Unsupported(remedy="send ref_text"),
    "sample_rate": Unsupported(
        remedy=("the sample rate of the model is used; resample the audio that you receive")
    ),
}
"""Fields of vllm-omni and other servers that are known but not supported."""


def read_speech(body: bytes, visit: RequestContext) -> tuple[Order, AudioBytes | AudioEvents]:
    """Parse a request body. Raises `InvalidArgument` or `NotImplementedYet` with the field."""
    decoder = body_decoder(SpeechBody, visit.sampling_stages)
    unsupported = {
        **options_outside(visit.options),
        **UNSUPPORTED,
        **without_sampling(visit.stages),
    }
    speech = decode_fields(decoder, body, unsupported, visit.ignored)
    if not speech.model:
        raise invalid("model", "is empty")
    if not speech.input.strip():
        raise invalid("input", "must not be empty; it is the text to be spoken")
    audio_format = speech.response_format.strip().lower() or DEFAULT_FORMAT
    check_format(audio_format, FORMATS, "response_format")
    check_speed(speech.speed)
    delivery = None if speech.delivery is None else Delivery(speech.delivery)
    options, names = _options(speech, visit)
    order = Order(
        model=speech.model,
        messages=(ConversationMessage("user", (TextPart(speech.input),)),),
        outputs=frozenset({AUDIO}),
        reads_aloud=True,
        voice=voice_name(speech.voice),
        sampling={
            INPUT_STAGE: sampling_request(speech),
            **stage_sampling(speech, visit.sampling_stages),
        },
        delivery=delivery,
        chunk_policy=read_chunk_policy(speech.chunk_policy),
        options=options,
        instruction=speech.instructions or None,
        field_names={"instruction": "instructions", **names_of_text("input"), **names},
    )
    whole = leaves_whole(audio_format, delivery or visit.delivery.get(AUDIO))
    encoding = AudioEncoding(audio_format, speech.speed, whole)
    return order, (AudioEvents if speech.stream_format == "sse" else AudioBytes)(encoding)


def _options(
    speech: SpeechBody, visit: RequestContext
) -> tuple[dict[str, OptionInput], dict[str, str]]:
    """Return the model's options and a mapping from options to the field names for error messages.

    Options are taken from `options` and from fields that other servers use for them. Raises
    `NotImplementedYet` if a voice recording is given but the model can't use it, and
    `InvalidArgument` if a field contradicts its option. If the model doesn't have one of the other
    options, that option is ignored and reported.
    """
    options = options_from_json(speech.options)
    known = {each.name: each for each in visit.options}
    names: dict[str, str] = {}

    def give(field: str, name: str, value: OptionInput) -> None:
        if name not in known:
            visit.ignored.add(field, field)
        elif name not in options:
            options[name] = value
            names[f"options.{name}"] = field
        elif not _same_value(options[name], value):
            raise invalid(field, f"options.{name} has a different value; set only one of them")

    if speech.language and speech.language.casefold() != "auto":
        choices = known["language"].choices if "language" in known else ()
        give("language", "language", language_choice(speech.language, choices))
    if speech.ref_audio:
        data = data_or_url(speech.ref_audio, "ref_audio")
        if "reference_audio" not in known:
            raise NotImplementedYet(
                "ref_audio: this model can't use the voice of a recording; leave it out",
                field="ref_audio",
            )
        if isinstance(data, RemoteUrl):
            raise invalid(
                "ref_audio", "URLs are not supported; send the recording itself as base64"
            )
        give("ref_audio", "reference_audio", Recording("ref_audio", data))
    if speech.ref_text:
        give("ref_text", "reference_text", speech.ref_text)
    if TASK not in options and does_task(visit.options, SPEECH_TASK):
        options[TASK] = SPEECH_TASK
    if speech.non_streaming_mode is not None:
        mode = "whole" if speech.non_streaming_mode else "stream"
        give("non_streaming_mode", "text_mode", mode)
    return options, names


def _same_value(one: OptionInput, other: OptionInput) -> bool:
    if isinstance(one, Recording) and isinstance(other, Recording):
        return one.data == other.data
    return one == other


SPEECH = JsonEndpoint(
    "/v1/audio/speech",
    read_speech,
    EndpointMessages(
        "Generates speech that reads a text aloud.",
        SpeechBody,
        {**{each.media_type: None for each in FORMATS.values()}, EVENTS: None},
        example={
            "model": "MODEL",
            "input": "The sea is blue and warm.",
            "response_format": "wav",
        },
    ),
)
