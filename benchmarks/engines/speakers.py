"""Runs speaking sessions on a talker engine, and measures its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

import ml_dtypes
import numpy as np

from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.runtime.engine import Emitted, Engine, InputChunk, SegmentSettings
from antiphon.values.chunk import Tensor
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.qwen3_omni.talker.engine import CODES
from benchmarks.engines.stopwatch import Stopwatch

# The number of tokens in a prompt, in addition to the words of the user.
FRAME_IDS = 11
MOST_STEPS_BEFORE = 4000


class Speakers:
    """Speaking sessions. Each run measures `frames` - 1 steps in which every session draws a
    frame.
    """

    def __init__(
        self, engine: Engine, special: SpecialIds, frames: int, stopwatch: Stopwatch
    ) -> None:
        self._engine, self._special, self._frames = engine, special, frames
        self._stopwatch = stopwatch
        self._numbers = count()

    def steps_ms(self, sampling: Sampling, prompts: Sequence[int]) -> list[float]:
        """Measure steps with one session for each of the given numbers of prompt rows."""
        keys = self._speaking(sampling, prompts)
        made = 0
        self._stopwatch.start()
        for _ in range(self._frames - 1):
            made += self.step()
            self._stopwatch.lap()
        laps = self._stopwatch.laps_ms()
        self.leave(keys)
        if made < 0.9 * len(keys) * (self._frames - 1):
            raise RuntimeError(f"{len(keys)} sessions made {made} frames in {len(laps)} steps")
        return laps

    def disturbed_ms(
        self,
        sampling: Sampling,
        prompts: Sequence[int],
        arriving: int,
        *,
        recorded: int = 0,
        width: int = 0,
    ) -> list[float]:
        """Measure the steps from the arrival of another prompt until its first frame.

        `arriving` is the number of rows in this prompt. `recorded` and `width` are described in
        `join`.
        """
        keys = self._speaking(sampling, prompts)
        keys.append(self.join(sampling, arriving, len(keys), recorded=recorded, width=width))
        self._stopwatch.start()
        while self._engine.awaited_edge(keys[-1]) is None:
            made = self.step()
            self._stopwatch.lap()
            if made > len(prompts):
                break
        laps = self._stopwatch.laps_ms()
        self.leave(keys)
        return laps

    def _speaking(self, sampling: Sampling, prompts: Sequence[int]) -> list[SegmentKey]:
        """Start sessions and process their prompts, so that each step generates a frame for each
        session.
        """
        keys = [self.join(sampling, rows, seed) for seed, rows in enumerate(prompts)]
        for _ in range(MOST_STEPS_BEFORE):
            if self.step() >= len(keys):
                return keys
        raise RuntimeError(f"{len(keys)} sessions do not make a frame each")

    def step(self) -> int:
        """Run a step, and return the number of frames."""
        events = self._engine.step()
        return sum(isinstance(event, Emitted) and bool(event.tensors) for event in events)

    def join(
        self, sampling: Sampling, rows: int, seed: int, *, recorded: int = 0, width: int = 0
    ) -> SegmentKey:
        """Add a session with a prompt of approximately `rows` rows. It speaks up to the engine's
        limit.

        `recorded` of these rows belong to a recording. They are hidden rows of size `width`.
        """
        key, special = SegmentKey(f"session {next(self._numbers)}", 0), self._special
        # Sessions with short prompts already speak while other prompts are processed, but only up
        # to the context limit.
        settings = replace(sampling, seed=seed, max_tokens=MOST_STEPS_BEFORE)
        self._engine.admit(key, SegmentSettings("", settings, frozenset({CODES})))
        words = np.random.default_rng(seed).integers(20, 200, rows + 2 * self._frames)
        header = [special.im_start, special.assistant, 10]
        asked = [*[special.audio] * recorded, *words[recorded : rows - FRAME_IDS]]
        ids = [special.im_start, special.user, *asked, *header]
        reply = words[rows:].astype(np.int32)
        prompt: dict[str, Tensor] = {"ids": np.array(ids, np.int32)}
        if recorded:
            hidden = np.random.default_rng(seed).standard_normal((recorded, width))
            prompt["rows"] = hidden.astype(ml_dtypes.bfloat16)
            prompt["row_positions"] = np.arange(2, 2 + recorded, dtype=np.int32)
        self._engine.accept(key, InputChunk("prompt", 0, prompt, segment_finished=True))
        self._engine.accept(key, InputChunk("tokens", 0, {"ids": reply}, segment_finished=True))
        return key

    def leave(self, keys: Sequence[SegmentKey]) -> None:
        """End sessions."""
        for key in keys:
            self._engine.release(key)
