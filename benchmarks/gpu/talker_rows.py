"""Measures steps of the talker."""

from __future__ import annotations

from functools import partial

from antiphon.pipelines.qwen3_omni import TALKER
from antiphon_services.qwen3_omni.talker.load import DEFAULT_SAMPLING
from benchmarks.engines.speakers import Speakers
from benchmarks.engines.stopwatch import stopwatch_of
from benchmarks.gpu.loaded import FreshLengths, Stages, on_new_thread
from benchmarks.gpu.report import Figures, Row
from benchmarks.gpu.scale import EAGER, Way, scale_of, summary
from benchmarks.gpu.weights import sizes_of, special_ids, whole_config


class TalkerRows:
    """Rows of a talker. The prompts have lengths that no other row has used."""

    def __init__(self, stages: Stages) -> None:
        self._stages, self._scale = stages, scale_of(stages.device)
        self._lengths = FreshLengths(tuple(self._scale.prompt_rows))

    def frames(self, way: Way) -> list[Row]:
        """Return rows for frames of sessions with prompts of different lengths."""
        return [
            Row(f"talker, {way}, {count} sessions", partial(self._frames, way, count))
            for count in self._scale.sessions
        ]

    def recordings(self) -> list[Row]:
        """Return rows for steps while the hidden rows of a long recording arrive, by type of
        copy.
        """
        return [
            Row(f"talker, {way}, a recording arrives", partial(self._disturbed, way))
            for way in (EAGER, Way(False, async_to_device=False))
        ]

    def speakers(self, way: Way) -> Speakers:
        """Return sessions on a talker with these settings, which has been warmed up like a
        stage.
        """
        device, scale = self._stages.device, self._scale
        longest = max(*scale.prompt_rows, scale.arriving) + 2 * len(scale.sessions) * scale.frames
        limit = max(scale.context, longest + scale.frames)
        stage = self._stages.load(TALKER, way, slots=max(scale.sessions) + 1, context=limit)
        special = special_ids(whole_config(sizes_of(device)))
        return Speakers(stage.engine, special, scale.frames, stopwatch_of(device))

    def _frames(self, way: Way, sessions: int) -> Figures:
        speakers, stopwatch = self.speakers(way), stopwatch_of(self._stages.device)
        first, *prompts = self._lengths.take(1 + sessions)

        def measure() -> Figures:
            stopwatch.start()
            key = speakers.join(DEFAULT_SAMPLING, first, 0)
            while not speakers.step():
                pass
            stopwatch.lap()
            (first_frame_ms,) = stopwatch.laps_ms()
            speakers.leave([key])
            told = summary(speakers.steps_ms(DEFAULT_SAMPLING, prompts))
            return {"first_frame_ms": round(first_frame_ms, 3), **told}

        return on_new_thread(measure)

    def _disturbed(self, way: Way) -> Figures:
        scale, speakers = self._scale, self.speakers(way)
        sessions = min(16, scale.sessions[-1])
        prompts = self._lengths.take(sessions)
        recorded = scale.arriving - 32
        measure = partial(
            speakers.disturbed_ms,
            DEFAULT_SAMPLING,
            prompts,
            scale.arriving,
            recorded=recorded,
            width=sizes_of(self._stages.device).shape.hidden,
        )
        told = summary(on_new_thread(measure))
        return {"sessions": sessions, "arriving_rows": scale.arriving, **told}
