"""Sampling settings of a stage, validated on construction."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from numbers import Integral, Real
from typing import Any

from antiphon.errors import InvalidArgument, told

MAX_TOP_K = 1 << 20
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_TOP_LOGPROBS = 20
MAX_SCHEMA_BYTES = 64 << 10
MAX_SEED = (1 << 64) - 1
KEY_BITS = 128
INPUT_STAGE = ""
"""Key in a request's sampling of the stage that receives the messages."""
SMALLEST = 1e-6
"""Smallest temperature above 0 and smallest repetition penalty.

Logits divided by them stay finite in float32."""


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """A client's sampling settings; `None` selects the pipeline's default.

    A `temperature` of 0 is greedy: the most likely id after repetition penalty and suppression.
    Other temperatures and the penalty are at least `SMALLEST`. A `top_k` of 0 keeps all ids.
    `max_tokens` counts the stop id. `top_logprobs` requests the log probability of each text token
    and of that many of the most likely ones. Stages without text output ignore it, and `stop`.
    `json_schema` is a JSON schema as text that constrains the stage's text, which is incomplete
    only if it ends early. Not every engine supports it; see `Describe`.

    Raises `InvalidArgument` with `field` for a value out of range.
    """

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    json_schema: str | None = None

    def __post_init__(self) -> None:
        _check_number("temperature", self.temperature, SMALLEST, 100.0, or_zero=True)
        _check_integer("top_k", self.top_k, 0, MAX_TOP_K)
        _check_number("top_p", self.top_p, SMALLEST, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, SMALLEST, 100.0)
        _check_integer("seed", self.seed, 0, MAX_SEED)
        _check_integer("max_tokens", self.max_tokens, 1, (1 << 31) - 1)
        _check_integer("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        _check_schema(self.json_schema)
        if not isinstance(self.stop, tuple) or len(self.stop) > MAX_STOPS:
            raise InvalidArgument(f"stop: a tuple of at most {MAX_STOPS} strings", field="stop")
        for text in self.stop:
            if not isinstance(text, str) or not 0 < utf8_size(text) <= MAX_STOP_BYTES:
                raise InvalidArgument(
                    f"stop: each stop string has 1 to {MAX_STOP_BYTES} bytes of UTF-8", field="stop"
                )

    def given(self) -> dict[str, Any]:
        """Return the settings that are set, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != ()}


@dataclass(frozen=True, slots=True)
class Sampling:
    """Complete sampling settings of one stage for one segment; see `SamplingRequest`.

    An engine receives them `keyed`: `seed` is then the `stream_key` of all its draws. In a stage's
    defaults, `seed` applies to requests without one.
    """

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int
    max_tokens: int
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None
    json_schema: str | None = None

    @property
    def greedy(self) -> bool:
        """Whether ids are chosen deterministically."""
        return self.temperature == 0.0

    def with_request(self, request: SamplingRequest) -> Sampling:
        """Return these defaults with the request's settings applied."""
        return replace(self, **request.given())

    def keyed(self, role: str, choice: int) -> Sampling:
        """Return these settings with `seed` replaced by the key of a stage's draws for one
        answer."""
        return replace(self, seed=stream_key(self.seed, role, choice))


def stream_key(seed: int, role: str, choice: int = 0) -> int:
    """Return the key, of `KEY_BITS` bits, of all random draws of a stage for one answer.

    `seed` is the request's, at most `MAX_SEED`. `role` is the stage's. `choice`, of 32 bits,
    numbers the answers to one request. The key is a cryptographic hash of an unambiguous encoding
    of the three. So stages, answers and seeds draw independently, even if seeds are equal,
    consecutive or chosen with knowledge of the draws.
    """
    message = seed.to_bytes(8, "little") + choice.to_bytes(4, "little") + role.encode()
    digest = blake2b(message, digest_size=KEY_BITS // 8, person=b"antiphon.draws").digest()
    return int.from_bytes(digest, "little")


def utf8_size(text: str) -> int:
    """Return the text's size in UTF-8; 0 if it cannot be encoded (lone surrogates)."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def _check_integer(name: str, value: int | None, low: int, high: int) -> None:
    """Raise unless the value is an integer from `low` to `high`, or None."""
    if value is None:
        return
    fits = isinstance(value, Integral) and not isinstance(value, bool)
    if not fits or not low <= value <= high:
        raise _refused(name, f"an integer from {low} to {high}", value)


def _check_number(
    name: str, value: float | None, low: float, high: float, *, or_zero: bool = False
) -> None:
    """Raise unless the value is a number from `low` to `high`, or None. NaN is rejected."""
    if value is None:
        return
    fits = isinstance(value, Real) and not isinstance(value, bool)
    if not fits or not (low <= value <= high or (or_zero and value == 0)):
        wanted = f"{'0 or ' if or_zero else ''}from {low:g} to {high:g}"
        raise _refused(name, wanted, value)


def _check_schema(text: str | None) -> None:
    """Raise unless the text is a JSON object within the size limit, or None."""
    if text is None:
        return
    if not isinstance(text, str) or not 0 < utf8_size(text) <= MAX_SCHEMA_BYTES:
        raise InvalidArgument(
            f"json_schema: must be text of 1 to {MAX_SCHEMA_BYTES} bytes of UTF-8",
            field="json_schema",
        )
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(
            f"json_schema: is not JSON: {type(error).__name__}: {error}", field="json_schema"
        ) from error
    if not isinstance(schema, dict):
        raise InvalidArgument("json_schema: must be a JSON object", field="json_schema")


def _refused(name: str, wanted: str, value: object) -> InvalidArgument:
    return InvalidArgument(f"{name}: must be {wanted}, is {told(value)}", field=name)
