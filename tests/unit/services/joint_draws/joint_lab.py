"""Draws of many requests at once, and how likely the reference's processors make each.

A draw of probabilities p that gives id i becomes a number in [0, 1): what lies below i, and a
random part of p[i]. If ids come of the joint distribution of the reference, which makes the
probabilities of each draw from all that was drawn before it, then these numbers are spread evenly
and are independent of each other (Rosenblatt's transformation). So whatever a draw's context is,
all requests can be counted together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import Engine, InputChunk, SegmentSettings
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.sampler import choose_each, uniform_each
from antiphon_testkit.chi_square import chi_square_p
from antiphon_testkit.drive_engine import SegmentOutput, advance
from antiphon_testkit.stage_settings import stage_settings

REQUESTS, TOGETHER = 1024, 64
BINS = 6
LEAST_P = 1e-6
"""Of the least likely of all counts; there are some hundreds."""

MOSTLY = 0.75
NOTHING = -1

Ids = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.float64]


@dataclass
class Recorder:
    """Notes every draw of a stage by the number that it is drawn with: logits [V], and the id."""

    draws: dict[float, tuple[Tensor, int]] = field(default_factory=dict)

    def choose_each(
        self, logits: Tensor, settings: Any, numbers: Tensor, **known: Any
    ) -> tuple[Tensor, Tensor]:
        """As the sampler does."""
        ids, best = choose_each(logits, settings, numbers, **known)
        noted = zip(logits.float().clone(), ids.tolist(), strict=True)
        self.draws.update(zip(numbers[:, 0].tolist(), noted, strict=True))
        return ids, best

    @classmethod
    def of(cls, monkeypatch: pytest.MonkeyPatch, *modules: Any) -> Recorder:
        """One that is in the place of the sampler in these modules."""
        recorder = cls()
        for module in modules:
            monkeypatch.setattr(module, "choose_each", recorder.choose_each)
        return recorder


@dataclass(frozen=True)
class StageDraws:
    """A stage's draws for all requests: `settings` by request, and what was recorded."""

    settings: Sequence[SegmentSettings]
    recorder: Recorder

    def draws(self, step: int, group: int = 0) -> list[tuple[Tensor, int] | None]:
        """One of each request; None of those that have ended before."""
        keys = [each.sampling.seed for each in self.settings]
        numbers = uniform_each(keys, [step] * len(keys), group + 1)[:, group]
        return [self.recorder.draws.get(number) for number in numbers.tolist()]

    def ids(self, steps: int, group: int = 0) -> Ids:
        """[requests, steps]; `NOTHING` where there is none."""
        draws = [self.draws(step, group) for step in range(steps)]
        ids = [[NOTHING if draw is None else draw[1] for draw in each] for each in draws]
        return np.array(ids, np.int64).T

    def check_left(self, outputs: Sequence[SegmentOutput], edge: str, name: str) -> None:
        """What has left on an edge is what was drawn."""
        rows = [each.tensors(edge).get(name, np.empty(0, np.int64)) for each in outputs]
        groups = max(row[:1].size for row in rows)
        steps = max(len(row) for row in rows)
        drawn = np.stack([self.ids(steps, group) for group in range(groups)], axis=-1)
        for row, own in zip(rows, drawn, strict=True):
            np.testing.assert_array_equal(row.reshape(-1, groups), own[: len(row)])


def settings_of(
    pipeline: Pipeline, role: str, sampling: Sampling, outputs: Iterable[str]
) -> list[SegmentSettings]:
    """Those of all requests, whose seeds are consecutive."""
    return [
        stage_settings(pipeline, role, sampling, seed, outputs=frozenset(outputs))
        for seed in range(REQUESTS)
    ]


def run_together(
    engine: Engine, settings: Sequence[SegmentSettings], chunks: Sequence[Sequence[InputChunk]]
) -> list[SegmentOutput]:
    """Answers to all, so many at a time; each has its whole input before the first step."""
    made: list[SegmentOutput] = []
    for start in range(0, len(settings), TOGETHER):
        outputs: dict[SegmentKey, SegmentOutput] = {}
        stop = min(start + TOGETHER, len(settings))
        for number in range(start, stop):
            key = SegmentKey(f"request {number}", 0)
            outputs[key] = SegmentOutput()
            engine.admit(key, settings[number])
            for chunk in chunks[number]:
                engine.accept(key, chunk)
        advance(engine, outputs)
        made += outputs.values()
    assert all(each.completed is not None for each in made)
    return made


def handed_on(output: SegmentOutput, edges: Iterable[str]) -> list[InputChunk]:
    """What a stage has emitted on these edges, as the next one gets it."""
    return [
        InputChunk(
            each.edge,
            each.position,
            each.tensors,
            segment_finished=each.finish_reason is not None,
            finish_reason=each.finish_reason,
        )
        for edge in edges
        for each in output.emitted
        if each.edge == edge
    ]


def processors(sampling: Sampling, suppressed: Sequence[int] = ()) -> LogitsProcessorList:
    """Those of `generate`, in its order."""
    made = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)])
    if suppressed:
        made.append(SuppressTokensLogitsProcessor(list(suppressed)))
    made.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        made.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1.0:
        made.append(TopPLogitsWarper(sampling.top_p))
    return made


@dataclass
class JointDraws:
    """The numbers of draws, [requests] each, in the order in which they are made.

    A request that ends before a draw has none, which depends on draws before it alone. So given
    any of these, a draw that is made is spread evenly all the same.
    """

    drawn: dict[str, Numbers] = field(default_factory=dict)

    def add(
        self,
        name: str,
        draws: Sequence[tuple[Tensor, int] | None],
        history: Ids,
        chain: LogitsProcessorList,
    ) -> None:
        """The draw of each request behind a history [requests, any], where there is one.

        An id that the reference would never draw is an error.
        """
        made = [number for number, each in enumerate(draws) if each is not None]
        assert len(made) > MOSTLY * len(draws), f"{name}: most have ended before"
        given = [each for each in draws if each is not None]
        logits, ids = torch.stack([each[0] for each in given]), [each[1] for each in given]
        likely = chain(torch.from_numpy(history[made]), logits).double().softmax(-1)
        chosen = torch.tensor(ids)[:, None]
        own = likely.gather(1, chosen)[:, 0].numpy()
        assert own.min() > 0, f"{name}: the reference draws no such id"
        assert own.mean() < MOSTLY, f"{name}: there is little to draw"
        below = (likely.cumsum(-1) - likely).gather(1, chosen)[:, 0].numpy()
        part = np.random.default_rng(len(self.drawn)).random(len(made))
        numbers = np.full(len(draws), np.nan)
        numbers[made] = np.clip(below + part * own, 0.0, np.nextafter(1.0, 0.0))
        self.drawn[name] = numbers

    def check(self) -> None:
        """Every draw has the reference's probabilities, and none tells of a later one."""
        for name, each in self.drawn.items():
            cells = _cells(each[~np.isnan(each)])
            even = np.full(BINS, len(cells) / BINS)
            assert chi_square_p(np.bincount(cells, minlength=BINS), even) > LEAST_P, name
        for (name, earlier), (other, later) in combinations(self.drawn.items(), 2):
            both = ~np.isnan(earlier) & ~np.isnan(later)
            rows, columns = _cells(earlier[both]), _cells(later[both])
            counts = np.bincount(rows * BINS + columns, minlength=BINS**2)
            expected = np.bincount(rows, minlength=BINS).repeat(BINS) / BINS
            p = chi_square_p(counts, expected)
            assert p > LEAST_P, f"{name} tells of {other}: p = {p:.1e}"


def _cells(numbers: Numbers) -> Ids:
    return (numbers * BINS).astype(np.int64)
