"""Sessions that speak on one talker engine, and what its steps take."""

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

# Of a prompt beside its user's words.
FRAME_IDS = 11
MOST_STEPS_BEFORE = 4000


class Speakers:
    """Each run times `frames` - 1 steps in which all sessions draw a frame."""

    def __init__(
        self, engine: Engine, special: SpecialIds, frames: int, stopwatch: Stopwatch
    ) -> None:
        self._engine, self._special, self._frames = engine, special, frames
        self._stopwatch = stopwatch
        self._numbers = count()

    def steps_ms(self, sampling: Sampling, prompts: Sequence[int]) -> list[float]:
        """Steps of a session for each of these numbers of prompt rows."""
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
        """Steps of such sessions from when a prompt of so many rows arrives to its first frame.

        `recorded` and `width` are those of `join`, for the prompt that arrives.
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
        """Sessions whose prompts are in, so that each makes a frame in every step."""
        keys = [self.join(sampling, rows, seed) for seed, rows in enumerate(prompts)]
        for _ in range(MOST_STEPS_BEFORE):
            if self.step() >= len(keys):
                return keys
        raise RuntimeError(f"{len(keys)} sessions do not make a frame each")

    def step(self) -> int:
        """One step of the engine; how many frames came."""
        events = self._engine.step()
        return sum(isinstance(event, Emitted) and bool(event.tensors) for event in events)

    def join(
        self, sampling: Sampling, rows: int, seed: int, *, recorded: int = 0, width: int = 0
    ) -> SegmentKey:
        """A session with a prompt of about so many rows; it speaks to the engine's limit.

        `recorded` of the rows are those of a recording, hidden rows of `width` numbers.
        """
        key, special = SegmentKey(f"session {next(self._numbers)}", 0), self._special
        # Those whose prompts are short speak while others' are read, up to the context's limit.
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
