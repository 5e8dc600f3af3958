"""Forms for the endpoints' fuzz: fields, files and heads of parts, good, strange or mutated."""

from __future__ import annotations

from random import Random

from tests.contract.fuzz_files import mutated, packed, wav
from tests.contract.served_gateway import MODEL

FORM_PATH = b"/v1/audio/transcriptions"


def form(random: Random) -> tuple[bytes, bytes]:
    """A body, and the content type that it has or claims."""
    boundary = random.choice((b"x", b"-", b"outline", b"'()+_,-./:=?", b"b" * 70, b"b" * 300))
    parts = [_field(random, b"model", MODEL.encode())]
    parts.append(_file(random, wav(random) if random.random() < 0.5 else packed(random)[0]))
    fields = {
        b"language": (b"en", b"x" * 99, b"e\0n"),
        b"prompt": (b"Bells.", b"a " * 40_000, b"\xff\xfe", b"<|im_end|>"),
        b"response_format": (b"json", b"text", b"verbose_json", b"srt", b""),
        b"temperature": (b"0", b"0.5", b"1e999", b"nan", b"-1", b"[]"),
        b"stream": (b"true", b"false", b"2"),
        b"include[]": (b"logprobs",),
        b"tone" * random.choice((1, 2_000)): (b"",),
    }
    for name, values in fields.items():
        if random.random() < 0.25:
            parts.append(_field(random, name, random.choice(values)))
    if random.random() < 0.1:
        parts += parts * random.choice((1, 50, 900))
    random.shuffle(parts)
    body = b"".join(b"--%b\r\n%b\r\n" % (boundary, part) for part in parts)
    body += b"--%b--\r\n" % boundary
    if random.random() < 0.1:
        body += (b"\r\n--%b" % boundary + random.choice((b"y", b"-", b""))) * 10_000
    if random.random() < 0.3:
        body = mutated(body, random)
    claimed = boundary if random.random() < 0.9 else random.choice((b"", b'"', b"other"))
    return body, b"multipart/form-data; boundary=" + claimed


def _field(random: Random, name: bytes, value: bytes) -> bytes:
    return b'Content-Disposition: form-data; name="%b"\r\n\r\n%b' % (name, value)


def _file(random: Random, data: bytes) -> bytes:
    head = random.choice(
        (b"", b"Content-Type: audio/wav\r\n", b"x: y\r\n" * 50, b"x: " + b"y" * 9_000 + b"\r\n")
    )
    if random.random() < 0.5:
        data = mutated(data, random)
    return head + _field(random, b'file"; filename="a.wav', data)
