"""What the endpoint fuzz sends: valid requests and files, mutated. Pure: all from one generator.

A case is what a client writes on a connection, and how it behaves while it does.
"""

from __future__ import annotations

import base64
import copy
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import soundfile

from tests.contract.fuzz_files import film, mutated, packed, picture, wav
from tests.contract.fuzz_forms import FORM_PATH, form
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN

MAX_TEXT = 200_000
SPEECH_PATH = b"/v1/audio/speech"


@dataclass(frozen=True)
class Case:
    """Bytes in the pieces in which they are written, and when the client goes away.

    `patience_s` is for the next bytes of an answer. `takes` bytes of it are read at most,
    and then the connection is closed, or `reset`.
    """

    pieces: tuple[bytes, ...]
    patience_s: float = 5.0
    pause_s: float = 0.0
    takes: int = 1 << 24
    reset: bool = False
    # Closes its writing side behind the last piece, as a client does that has said all.
    half_closes: bool = False


def request(
    body: bytes,
    *,
    method: bytes = b"POST",
    path: bytes = b"/v1/chat/completions",
    headers: tuple[bytes, ...] = (),
    close: bool = True,
    content_type: bytes = b"application/json",
) -> bytes:
    """A whole request; the server closes the connection behind its answer."""
    lines = (
        b"%b %b HTTP/1.1" % (method, path),
        b"host: localhost",
        b"content-type: " + content_type,
        b"content-length: %d" % len(body),
        *((b"connection: close",) if close else ()),
        *headers,
    )
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def _file(random: Random, make: Callable[[Random], bytes]) -> str:
    """A file in base64: mutated before, after or not at all."""
    data = make(random)
    if random.random() < 0.8:
        data = mutated(data, random)
    text = base64.b64encode(data).decode()
    if random.random() < 0.1:
        text = mutated(text.encode(), random, 1).decode("latin-1")
    return text


def _recording(random: Random) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": _file(random, wav), "format": "wav"}}


def _packed(random: Random) -> dict[str, Any]:
    name = ""

    def make(random: Random) -> bytes:
        nonlocal name
        data, name = packed(random)
        return data

    data = _file(random, make)
    if random.random() < 0.3:
        url = f"data:audio/{random.choice((name, 'wav', 'mpeg'))};base64,{data}"
        return {"type": "audio_url", "audio_url": {"url": url}}
    return {"type": "input_audio", "input_audio": {"data": data, "format": name}}


def _sample(random: Random) -> dict[str, str]:
    """A recording as an option has it."""
    return {"data": _file(random, wav), "format": "wav"}


def _picture(random: Random) -> dict[str, Any]:
    kind = random.choice(("png", "jpeg", "webp", "png", "gif"))
    url = f"data:image/{kind};base64,{_file(random, picture)}"
    return {"type": "image_url", "image_url": {"url": url}}


def _film(random: Random) -> dict[str, Any]:
    return {
        "type": "video_url",
        "video_url": {"url": f"data:video/mp4;base64,{_file(random, film)}"},
    }


def valid(random: Random) -> dict[str, Any]:
    """A request that is good, of one of the shapes that there are."""
    fields: dict[str, Any] = {"model": MODEL, "messages": copy.deepcopy(MESSAGES)}
    if random.random() < 0.5:
        fields |= copy.deepcopy(SPOKEN)
    extra: dict[str, Any] = {
        "stream": True,
        "max_tokens": 7,
        "seed": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "stop": ["END", "."],
        "logprobs": True,
        "talker": {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.05, "max_tokens": 9},
        "delivery": "whole",
        "chunk_policy": {"first": 1, "ramp": [2, 4], "steady": 8},
        "options": {"style": "waltz", "tempo": 1.5, "sample": _sample(random)},
        "metadata": {"key": "value"},
        "user": "somebody",
        "n": random.choice((1, 2, 9)),
        "tools": [],
        "response_format": {"type": "text"},
    }
    for name, value in extra.items():
        if random.random() < 0.3:
            fields[name] = value
    if random.random() < 0.3:
        text = {"type": "text", "text": "What is this?"}
        fields["messages"].append({"role": "user", "content": [text, dict(text)]})
    return fields


def valid_speech(random: Random) -> dict[str, Any]:
    """A request of the speech endpoint that is good."""
    fields: dict[str, Any] = {"model": MODEL, "input": "Read this, and that."}
    extra: dict[str, Any] = {
        "voice": random.choice(("ethan", {"id": "chelsie"})),
        "response_format": random.choice(("mp3", "opus", "flac", "wav", "pcm", "aac")),
        "stream_format": random.choice(("audio", "sse")),
        "speed": random.choice((0.25, 1.0, 1.0, 4)),
        "instructions": "Whisper.",
        "seed": 3,
        "top_k": 5,
        "temperature": 0.5,
        "talker": {"temperature": 0.9, "max_tokens": 9},
        "delivery": "whole",
        "chunk_policy": {"first": 1, "ramp": [2, 4], "steady": 8},
        "options": {"style": "waltz", "tempo": 1.5, "sample": _sample(random)},
    }
    return fields | {name: value for name, value in extra.items() if random.random() < 0.4}


def _strange(random: Random) -> str:
    """A JSON value that hardly anybody expects, as text."""
    depth = random.choice((3, 900, 2_000, 50_000))
    long = random.choice((300, 20_000, MAX_TEXT))
    return random.choice(
        (
            lambda: "null",
            lambda: "true",
            lambda: "[]",
            lambda: "{}",
            lambda: '""',
            lambda: "-1",
            lambda: "0.1",
            lambda: "1e308",
            lambda: "-1e-308",
            lambda: "1e999",
            lambda: "NaN",
            lambda: str(2**31),
            lambda: str(2**63),
            lambda: str(2**64),
            lambda: random.choice("+-") * 1 + "9" * random.choice((20, 400, 5_000)),
            lambda: "9" * random.choice((20, 400, 5_000)),
            lambda: "-" + "9" * random.choice((20, 400, 5_000)),
            lambda: "[" * depth + "]" * depth,
            lambda: '{"a":' * depth + "1" + "}" * depth,
            lambda: json.dumps("x" * long),
            lambda: json.dumps("\U0001f3b5" * (long // 4), ensure_ascii=False),
            lambda: json.dumps("\0\x1b\r\n\u2028\ufdd0<|im_end|>"),
            lambda: r'"\ud800"',
            lambda: json.dumps(list(range(long // 10))),
            lambda: json.dumps({str(n): n for n in range(long // 10)}),
            lambda: json.dumps([{"role": "user", "content": "a"}] * (long // 40)),
            lambda: json.dumps([{"type": "text", "text": "a"}] * (long // 40)),
        )
    )()


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything within a JSON value."""
    found = [path] if path else []
    if isinstance(value, dict | list):
        inside = value.items() if isinstance(value, dict) else enumerate(value)
        for key, each in inside:
            found += _places(each, (*path, key))
    return found


def strange_json(random: Random, fields: dict[str, Any]) -> bytes:
    """A valid request with strange values in place of some of its own, or beside them."""
    marks: dict[str, str] = {}
    for number in range(random.randint(1, 3)):
        *path, last = random.choice(_places(fields))
        parent: Any = fields
        for key in path:
            parent = parent[key]
        mark = f"mark {number} of the fuzz"
        marks[mark] = _strange(random)
        match random.randrange(6):
            case 0:
                del parent[last]
            case 1 if isinstance(parent, dict):
                parent[random.choice(("", "x" * 5_000, "\0", "type", "content", "id"))] = mark
            case 2 if isinstance(parent, list):
                parent += [copy.deepcopy(parent[last])] * random.choice((1, 70, 4_100))
            case _:
                parent[last] = mark
        if not _places(fields):
            break
    text = json.dumps(fields)
    for mark, strange in marks.items():
        text = text.replace(f'"{mark}"', strange)
    return text.encode(errors="surrogatepass")


def json_case(random: Random) -> Case:
    """A body that is no request, or a strange one."""
    body = strange_json(random, valid(random))
    if random.random() < 0.3:
        body = mutated(body, random)
    return Case((request(body),))


def speech_case(random: Random) -> Case:
    """A body that is no request of the speech endpoint, or a strange one, or one of too much."""
    fields = valid_speech(random)
    if random.random() < 0.1:
        fields["input"] = "a b " * random.choice((2_000, 200_000, 600_000))
    body = strange_json(random, fields) if random.random() < 0.8 else json.dumps(fields).encode()
    if random.random() < 0.2:
        body = mutated(body, random)
    return Case((request(body, path=SPEECH_PATH),))


def form_case(random: Random) -> Case:
    """A form that is good, strange, mutated, or left in the middle."""
    body, content_type = form(random)
    data = request(body, path=FORM_PATH, content_type=content_type)
    return Case((data,)) if random.random() < 0.7 else _leaving(random, data)


def media_case(random: Random) -> Case:
    """A request whose recordings, pictures and films are mutated real files."""
    fields = valid(random)
    makers = (_recording, _packed, _picture, _film)
    parts = [random.choice(makers)(random) for _ in range(random.choice((1, 1, 2, 3, 70)))]
    fields["messages"] = [{"role": "user", "content": parts}]
    if random.random() < 0.3:
        count = random.choice((1, 1, 3, 70))
        fields["options"] = {f"sample{n or ''}": _sample(random) for n in range(count)}
    return Case((request(json.dumps(fields).encode()),))


def header_case(random: Random) -> Case:
    """A request line and headers that are strange, mutated, or very long."""
    body = json.dumps(valid(random)).encode()
    method = random.choice((b"POST", b"GET", b"PUT", b"HEAD", b"OPTIONS", b"DELETE", b"BREW", b""))
    path = random.choice(
        (b"/v1/chat/completions", b"/v1/models", b"/v1/models/", b"/v1/models/%ff%00%2e%2e/x",
         b"/health", b"/metrics", b"/" + b"a" * 70_000, b"*", b"http://other/health", b"//",
         b"/v1/chat/completions?" + b"q=1&" * 500, b"/\xc3\xa4", b"")
    )  # fmt: skip
    length = random.choice((b"-1", b"9" * 400, b"0x10", b"1e3", b"", b"5, 5", b"99999999999"))
    strange: tuple[bytes, ...] = random.choice(
        (
            (),
            (b"content-length: " + length,),
            (b"transfer-encoding: chunked",),
            (b"transfer-encoding: gzip, chunked", b"content-length: 3"),
            (b"expect: 100-continue",),
            (b"connection: upgrade", b"upgrade: websocket", b"sec-websocket-key: eA=="),
            (b"connection: upgrade, http2-settings", b"upgrade: h2c", b"http2-settings: AAA"),
            (b"x-request-id: " + random.randbytes(30).hex().encode() * random.choice((1, 900)),),
            (b"x-request-id: a\tb\x7f\xff",),
            tuple(b"x-%d: %d" % (n, n) for n in range(random.choice((90, 3_000)))),
            (b"cookie: " + b"c" * random.choice((9_000, 300_000)),),
            (b"host: " + b"h" * 9_000,),
            (b": nameless",),
            (b"no colon",),
            (b"content-encoding: gzip",),
            (b"range: bytes=0-1",),
        )
    )
    data = request(body, method=method, path=path, headers=strange)
    if random.random() < 0.4:
        data = mutated(data[:400], random) + data[400:]
    if random.random() < 0.1:
        data = random.randbytes(random.choice((1, 500, 70_000)))
    return Case((data,), patience_s=0.5, half_closes=random.random() < 0.3)


def leaving_case(random: Random) -> Case:
    """A good request of a client that is slow, or goes away before it has its answer."""
    return _leaving(
        random, request(json.dumps(valid(random)).encode(), close=random.random() < 0.5)
    )


def speech_leaving_case(random: Random) -> Case:
    """The same at the speech endpoint."""
    body = json.dumps(valid_speech(random)).encode()
    return _leaving(random, request(body, path=SPEECH_PATH, close=random.random() < 0.5))


def _leaving(random: Random, data: bytes) -> Case:
    if random.random() < 0.3:
        data *= random.choice((2, 3, 20))
    cut = data if random.random() < 0.6 else data[: random.randrange(len(data))]
    count = random.choice((1, 1, 2, 5, 12))
    size = len(cut) // count + 1
    pieces = tuple(cut[at : at + size] for at in range(0, len(cut), size)) or (b"",)
    return Case(
        pieces,
        patience_s=0.2,
        pause_s=random.choice((0.0, 0.0, 0.005)),
        takes=random.choice((0, 0, 1, 200, 5_000, 1 << 24)),
        reset=random.random() < 0.5,
        half_closes=random.random() < 0.2,
    )


def bulk_case(random: Random) -> Case:
    """Much of one thing: about as much as a body may have, or more."""
    size = random.choice((700_000, 1_000_000, 1_000_000, 3_000_000))
    fields = valid(random)
    content: Any = "a b " * (size // 4)
    match random.randrange(6):
        case 0:
            content = [{"type": "text", "text": "a"}] * (size // 32)
        case 1:
            data = base64.b64encode(random.randbytes(size * 3 // 4)).decode()
            content = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
        case 2:
            file = io.BytesIO()
            soundfile.write(file, np.zeros(size * 3 // 4), 1_000, subtype="PCM_U8", format="WAV")
            data = base64.b64encode(file.getvalue()).decode()
            content = [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]
        case 3:
            fields["metadata"] = list(range(size // 7))
        case 4:
            fields["y" * size] = 1
    fields["messages"] = [{"role": "user", "content": content}]
    data = request(json.dumps(fields).encode())
    if random.random() < 0.2:
        # Announces a body and breaks off within it.
        return Case((data[: size // 2],), patience_s=0.1)
    return Case((data,))


KINDS: dict[str, Callable[[Random], Case]] = {
    "json": json_case,
    "form": form_case,
    "media": media_case,
    "headers": header_case,
    "leaving": leaving_case,
    "speech": speech_case,
    "speech_leaving": speech_leaving_case,
    "bulk": bulk_case,
}


def case_of(name: str) -> Case:
    """The case of a name: seed, round, kind and number, with strokes between."""
    return KINDS[name.split("/")[2]](Random(name))
