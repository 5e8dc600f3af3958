"""A request of `/v1/audio/speech` to an order: every check that needs no stage."""

from __future__ import annotations

from antiphon.conversation import ConversationMessage, TextPart
from antiphon.sampling import INPUT_STAGE
from antiphon.segment import Delivery
from gateway.calls.order import Order
from gateway.doors.http.chunk_policy import read_chunk_policy
from gateway.doors.http.door import Visit
from gateway.doors.http.json_body import decode_body, invalid
from gateway.doors.http.openapi import EVENTS, DoorMessages
from gateway.doors.http.options import options_from_json
from gateway.doors.http.stage_sampling import body_decoder, sampling_request, stage_sampling
from gateway.doors.http.voice import voice_name
from gateway.doors.read_aloud.answer import AudioBytes, AudioEvents
from gateway.doors.read_aloud.schema import SpeechBody
from gateway.media.audio_formats import FORMATS
from gateway.media.encoding import (
    AudioEncoding,
    check_format,
    check_speed,
    leaves_whole,
)
from gateway.outputs import AUDIO

SPEECH = DoorMessages(
    "Speaks a text as it is.",
    SpeechBody,
    {**{each.media_type: None for each in FORMATS.values()}, EVENTS: None},
)


def read_speech(body: bytes, visit: Visit) -> tuple[Order, AudioBytes | AudioEvents]:
    """Read a request body. Raises `InvalidArgument` or `NotImplementedYet` with the field."""
    speech = decode_body(body_decoder(SpeechBody, visit.sampling_stages), body)
    if not speech.model:
        raise invalid("model", "is empty")
    if not speech.input:
        raise invalid("input", "is empty; it is what is spoken")
    check_format(speech.response_format, FORMATS, "response_format")
    check_speed(speech.speed)
    delivery = None if speech.delivery is None else Delivery(speech.delivery)
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
        options=options_from_json(speech.options),
        instruction=speech.instructions,
        field_names={"instruction": "instructions", "messages": "input"},
    )
    whole = leaves_whole(speech.response_format, delivery or visit.delivery.get(AUDIO))
    encoding = AudioEncoding(speech.response_format, speech.speed, whole)
    return order, (AudioEvents if speech.stream_format == "sse" else AudioBytes)(encoding)
