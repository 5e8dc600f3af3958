"""What the fuzz sends to the gRPC endpoint."""

from __future__ import annotations

from random import Random
from typing import Any

from antiphon.v1 import options_pb2, speech_pb2
from tests.contract.fuzz_files import film, mutated, picture, wav
from tests.contract.served_gateway import MODEL

NAMES = {
    "sampling": ("thinker", "talker", "drummer", ""),
    "options": ("style", "tempo", "sample", "key", ""),
}


def message_of(name: str) -> bytes:
    """A `GenerateRequest` of any fields, serialized; every other one mutated as bytes."""
    random = Random(name)
    message = speech_pb2.GenerateRequest()
    _fill(message, random, depth=0)
    for name in ("modalities", "voice", "model", "messages", "sampling", "options"):
        # What is wrong at once hides the rest.
        if random.random() < 0.7:
            message.ClearField(name)
    if random.random() < 0.8:
        part = message.messages.add(role="user").parts.add()
        part.CopyFrom(random.choice(_parts(random)))
    if random.random() < 0.3:
        message.options["sample"].audio.wav = mutated(wav(random), random)
    data = message.SerializeToString()
    return mutated(data, random) if random.random() < 0.5 else data


def _parts(random: Random) -> tuple[speech_pb2.Part, ...]:
    return (
        speech_pb2.Part(text="Hi"),
        speech_pb2.Part(audio=options_pb2.AudioPart(wav=mutated(wav(random), random))),
        speech_pb2.Part(image=speech_pb2.ImagePart(file=mutated(picture(random), random))),
        speech_pb2.Part(video=speech_pb2.VideoPart(file=mutated(film(random), random))),
    )


def _fill(message: Any, random: Random, depth: int) -> None:
    """Set some of its fields to something that their type can hold."""
    for field in message.DESCRIPTOR.fields:
        if random.random() < 0.5:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            for name in random.sample(NAMES[field.name], 1):
                _fill(getattr(message, field.name)[name], random, depth + 1)
        elif field.message_type is not None:
            into = getattr(message, field.name)
            for _ in range(random.choice((1, 1, 3)) if field.is_repeated else 1):
                _fill(into.add() if field.is_repeated else into, random, depth + 1)
        elif field.is_repeated:
            count = random.choice((1, 2, 70, 300))
            getattr(message, field.name).extend(_scalar(field, random) for _ in range(count))
        else:
            setattr(message, field.name, _scalar(field, random))


def _scalar(field: Any, random: Random) -> Any:
    match field.cpp_type:
        case field.CPPTYPE_STRING if field.type == field.TYPE_BYTES:
            return random.choice((b"", random.randbytes(90), mutated(wav(random), random)))
        case field.CPPTYPE_STRING:
            return random.choice(("", "user", "text", "audio", "ethan", MODEL, "\0", "x" * 20_000))
        case field.CPPTYPE_DOUBLE | field.CPPTYPE_FLOAT:
            return random.choice((0.0, 0.5, 1.0, -1.0, 1e-320, 1e300, float("nan"), float("inf")))
        case field.CPPTYPE_BOOL:
            return random.random() < 0.5
        case _:
            return random.choice((0, 1, 2, 5, 70_000, (1 << 31) - 1))
