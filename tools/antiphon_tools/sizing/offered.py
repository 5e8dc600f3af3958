"""The load for which a fleet is planned: the arrival times and lengths of calls."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.errors import InvalidArgument
from antiphon_tools.load.arrivals import poisson_arrivals

KINDS = {
    "fixed": "fixed:MEAN",
    "exponential": "exponential:MEAN",
    "lognormal": "lognormal:MEAN:CV (deviation over mean)",
    "pareto": "pareto:MEAN:ALPHA (ALPHA above 1; smaller values mean a heavier tail)",
}


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of lengths.

    `shape` is the coefficient of variation or alpha. `most` is the maximum length.
    """

    kind: str
    mean: float
    shape: float = 0.0
    most: float = math.inf

    @classmethod
    def parse(cls, text: str, option: str) -> Lengths:
        """Parse lengths such as `lognormal:20:1.5`. Raises `InvalidArgument` if they are
        malformed.
        """
        kind, *numbers = text.split(":")
        try:
            values = [float(each) for each in numbers]
        except ValueError:
            values = []
        wanted = 1 if kind in ("fixed", "exponential") else 2
        fits = (
            kind in KINDS
            and len(values) == wanted
            and all(0 < value < math.inf for value in values)
            and not (kind == "pareto" and values[1] <= 1)
        )
        if not fits:
            raise InvalidArgument(
                f"{option} {text}: must be one of {'; '.join(KINDS.values())}", field=option
            )
        return cls(kind, *values)

    def draw(self, source: random.Random) -> float:
        """Draw a length."""
        match self.kind:
            case "exponential":
                value = source.expovariate(1 / self.mean)
            case "lognormal":
                variance = math.log(1 + self.shape**2)
                value = source.lognormvariate(
                    math.log(self.mean) - variance / 2, math.sqrt(variance)
                )
            case "pareto":
                least = self.mean * (self.shape - 1) / self.shape
                value = least * source.paretovariate(self.shape)
            case _:
                value = self.mean
        return min(value, self.most)


@dataclass(frozen=True, slots=True)
class OfferedCall:
    """A planned call, with the number of speech frames, text tokens and prompt rows."""

    number: int
    at_s: float
    prompt_rows: int
    tokens: int
    frames: int


@dataclass(frozen=True, slots=True)
class OfferedLoad:
    """A number of calls per second for a duration, preceded by a warm-up that is not measured.

    `burstiness` is the standard deviation of the intervals between calls divided by their mean. A
    value of 1 is a Poisson process. `speech_s` is the duration of a reply, which has `tokens_per_s`
    tokens per second.
    """

    rate: float
    seconds: float
    speech_s: Lengths
    prompt_rows: Lengths
    tokens_per_s: float = 4.0
    burstiness: float = 1.0
    warm_up_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("rate", "seconds", "tokens_per_s", "burstiness"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise InvalidArgument(
                    f"{name}: must be above 0 and finite, got {value:g}", field=name
                )
        if not 0 <= self.warm_up_s < math.inf:
            raise InvalidArgument(f"warm_up_s: must be 0 or more, got {self.warm_up_s:g}")

    @property
    def ends_s(self) -> float:
        """The maximum arrival time of a call."""
        return self.warm_up_s + self.seconds

    def calls(self, frame_s: float) -> Iterator[OfferedCall]:
        """Yield all calls. They are determined by the seed, and lengths do not depend on the
        rate.
        """
        lengths = random.Random(f"lengths {self.seed}")
        for number, at_s in enumerate(self.arrivals()):
            speech_s = self.speech_s.draw(lengths)
            yield OfferedCall(
                number,
                at_s,
                prompt_rows=max(1, round(self.prompt_rows.draw(lengths))),
                tokens=max(1, round(speech_s * self.tokens_per_s)),
                frames=max(1, round(speech_s / frame_s)),
            )

    def arrivals(self) -> Iterator[float]:
        """Yield the arrival times. Poisson arrivals are identical to the arrivals of a load test
        with this seed.
        """
        if self.burstiness == 1:
            yield from poisson_arrivals(self.rate, self.ends_s, self.seed)
            return
        gaps, at_s = random.Random(self.seed), 0.0
        shape = 1 / self.burstiness**2
        while (at_s := at_s + gaps.gammavariate(shape, 1 / (self.rate * shape))) < self.ends_s:
            yield at_s
