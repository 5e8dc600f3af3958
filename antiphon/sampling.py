"""Sampling settings of a stage, validated where they enter."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from antiphon.errors import InvalidArgument

MAX_TOP_K = 1 << 20
MAX_STOPS = 16
MAX_STOP_BYTES = 256
MAX_TOP_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class SamplingRequest:
    """What a client asked for; `None` takes the pipeline's default.

    `temperature` 0 is greedy: the likeliest id after repetition penalty and
    suppression. `top_k` 0 keeps all ids. `max_tokens` counts the stop id.
    `top_logprobs` asks the thinker for the log probability of each token of its
    text, and for so many of the likeliest; other stages pass over it, and over `stop`.
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

    def __post_init__(self) -> None:
        _check_range("temperature", self.temperature, 0.0, 100.0)
        _check_range("top_k", self.top_k, 0, MAX_TOP_K)
        _check_range("top_p", self.top_p, 0.0, 1.0, above=True)
        _check_range("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        _check_range("seed", self.seed, 0, (1 << 64) - 1)
        _check_range("max_tokens", self.max_tokens, 1, (1 << 31) - 1)
        _check_range("top_logprobs", self.top_logprobs, 0, MAX_TOP_LOGPROBS)
        if len(self.stop) > MAX_STOPS:
            raise InvalidArgument(f"stop: at most {MAX_STOPS} stop strings", field="stop")
        for text in self.stop:
            if not text or len(text.encode()) > MAX_STOP_BYTES:
                raise InvalidArgument(
                    f"stop: each stop string has 1 to {MAX_STOP_BYTES} bytes of UTF-8", field="stop"
                )


@dataclass(frozen=True, slots=True)
class Sampling:
    """Complete settings of one stage for one segment; see `SamplingRequest`."""

    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    seed: int
    max_tokens: int
    stop: tuple[str, ...] = ()
    top_logprobs: int | None = None

    @property
    def greedy(self) -> bool:
        """Whether ids are chosen without drawing."""
        return self.temperature == 0.0

    def with_request(self, request: SamplingRequest) -> Sampling:
        """These settings as defaults, with what the request sets in their place."""
        given = {
            each.name: value
            for each in fields(request)
            if (value := getattr(request, each.name)) is not None and value != ()
        }
        return replace(self, **given)


def _check_range(
    name: str, value: float | None, low: float, high: float, *, above: bool = False
) -> None:
    """Raise unless `low <= value <= high` (`low < value` with `above`)."""
    if value is None:
        return
    inside = low < value <= high if above else low <= value <= high
    if not math.isfinite(value) or not inside:
        bound = f"above {low:g}" if above else f"at least {low:g}"
        raise InvalidArgument(
            f"{name}: must be {bound} and at most {high:g}, got {value}", field=name
        )
