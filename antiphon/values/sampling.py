"""The sampling settings of a stage. They are validated on construction."""

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
"""The key that a request's sampling settings use for the stage that receives the messages."""
SMALLEST = 1e-6
"""The smallest value that is allowed for a repetition penalty, or for a temperature other than 0.

With this limit, logits in float32 remain finite when they are divided by these values.
"""


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """Sampling settings requested by a client. If a setting is `None`, the pipeline's default is
    used.

    If `temperature` is 0, decoding is greedy, which means that the most likely ID is chosen after
    applying the repetition penalty and suppression. All other temperatures and the repetition
    penalty must be at least `SMALLEST`. If `top_k` is 0, all IDs are kept. `max_tokens` includes
    the stop ID. Set `top_logprobs` to request the log probability of each text token. Its value is
    the number of most likely tokens whose log probabilities are returned as well. Stages that don't
    produce text ignore `top_logprobs` and `stop`. `json_schema` is the text of a JSON schema that
    constrains the output. The resulting text is complete unless the output ends early. Only some
    engines support schemas, and `Describe` reports whether a stage does.

    If a value is out of range, `InvalidArgument` is raised with the `field`.
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
            raise InvalidArgument(
                f"stop: must be a list of at most {MAX_STOPS} strings", field="stop"
            )
        for text in self.stop:
            if not isinstance(text, str) or not 0 < utf8_size(text) <= MAX_STOP_BYTES:
                raise InvalidArgument(
                    f"stop: each stop string must have 1 to {MAX_STOP_BYTES} bytes of UTF-8",
                    field="stop",
                )

    def given(self) -> dict[str, Any]:
        """Return a dictionary of the settings that are not None."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != ()}


@dataclass(frozen=True, slots=True)
class Sampling:
    """The complete sampling settings of one stage for one segment. See `SamplingRequest` for the
    fields.

    The settings that an engine receives are `keyed`. Their `seed` is the `stream_key` for all of
    the stage's random draws. In a stage's default settings, `seed` applies to requests that don't
    set one.
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
        """Whether IDs are chosen deterministically."""
        return self.temperature == 0.0

    def with_request(self, request: SamplingRequest) -> Sampling:
        """Return a copy of these defaults to which the request's settings have been applied."""
        return replace(self, **request.given())

    def keyed(self, role: str, choice: int) -> Sampling:
        """Return a copy of these settings whose `seed` is the key for a stage's random draws in one
        answer.
        """
        return replace(self, seed=stream_key(self.seed, role, choice))


def stream_key(seed: int, role: str, choice: int = 0) -> int:
    """Return the `KEY_BITS`-bit key for all random draws of a stage in one answer.

    `seed` is the request's seed, which must not exceed `MAX_SEED`. `role` is the role of the stage.
    If a request has several answers, `choice` is the number of this answer, which must fit into 32
    bits. The key is a cryptographic hash of an unambiguous encoding of these three values. As a
    result, the draws of different stages, answers and seeds are independent of each other. This is
    true even if seeds are equal or consecutive, or if they have been chosen with knowledge of the
    draws.
    """
    message = seed.to_bytes(8, "little") + choice.to_bytes(4, "little") + role.encode()
    digest = blake2b(message, digest_size=KEY_BITS // 8, person=b"antiphon.draws").digest()
    return int.from_bytes(digest, "little")


def utf8_size(text: str) -> int:
    """Return the size of the text in UTF-8. If it can't be encoded because it contains lone
    surrogates, returns 0.
    """
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return 0


def _check_integer(name: str, value: int | None, low: int, high: int) -> None:
    """Raise an error unless the value is None or an integer between `low` and `high`."""
    if value is None:
        return
    fits = isinstance(value, Integral) and not isinstance(value, bool)
    if not fits or not low <= value <= high:
        raise _refused(name, f"an integer from {low} to {high}", value)


def _check_number(
    name: str, value: float | None, low: float, high: float, *, or_zero: bool = False
) -> None:
    """Raise an error unless the value is None or a number between `low` and `high`. NaN is
    rejected.
    """
    if value is None:
        return
    fits = isinstance(value, Real) and not isinstance(value, bool)
    if not fits or not (low <= value <= high or (or_zero and value == 0)):
        wanted = f"{'0 or ' if or_zero else ''}from {low:g} to {high:g}"
        raise _refused(name, wanted, value)


def _check_schema(text: str | None) -> None:
    """Raise an error unless the text is None or a JSON object within the size limit."""
    if text is None:
        return
    if not isinstance(text, str) or not 0 < utf8_size(text) <= MAX_SCHEMA_BYTES:
        raise InvalidArgument(
            f"json_schema: must be a string with 1 to {MAX_SCHEMA_BYTES} bytes of UTF-8",
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
    return InvalidArgument(f"{name}: must be {wanted}, got {told(value)}", field=name)
