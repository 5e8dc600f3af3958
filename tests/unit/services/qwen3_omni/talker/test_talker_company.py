"""A session's codes are the same alone and in any company, whoever joins and leaves."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.runtime.engine import Emitted, Engine, Failed, InputChunk
from antiphon.values.sampling import Sampling
from antiphon.values.segment import SegmentKey
from antiphon_services.lm.attention import Span
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.frames import PART_ROWS
from antiphon_services.lm.graphs import Eager
from antiphon_services.lm.kv_cache import KVCache
from antiphon_services.qwen3_omni.talker.load import load
from antiphon_testkit.drive_engine import SegmentOutput, run_segment
from antiphon_testkit.flat_settings import stage_config
from tests.unit.services.qwen3_omni.talker.talker_lab import GREEDY, SAMPLED, Lab, Turn, codes_of

SLOTS = 64


@pytest.fixture(
    scope="module",
    params=[
        ("small_lab", None, False),
        ("other_lab", None, False),
        ("small_lab", Eager, False),
        ("other_lab", Eager, False),
        ("small_lab", None, True),
        ("other_lab", Eager, True),
    ],
    ids=["small", "other", "small-by-bucket", "other-by-bucket", "small-ahead", "other-all"],
)
def crowd(request: pytest.FixtureRequest) -> tuple[Lab, Engine]:
    name, bucketing, ahead = request.param
    lab: Lab = request.getfixturevalue(name)
    config = stage_config(slots=SLOTS, launch_ahead=ahead)
    return lab, load(lab.directory, config, bucketing).engine


PlainAnswers = dict[tuple[Path, int, int], list[list[int]]]


@pytest.fixture(scope="module")
def plain_answers() -> PlainAnswers:
    """Codes of the plain engine by checkpoint, seed and turn: engines share checkpoints."""
    return {}


def make_turn(lab: Lab, index: int, draw: random.Random) -> Turn:
    """Any prompt, reply and settings; some prompts take several chunks."""
    sampling: Sampling = draw.choice([GREEDY, SAMPLED, SAMPLED])
    sampling = replace(sampling, seed=index, max_tokens=draw.randint(1, 9))
    if not sampling.greedy:
        top_p = draw.choice([1.0, 0.9])
        sampling = replace(sampling, top_k=draw.choice([0, 5, 50]), top_p=top_p)
    audio = draw.choice([0, 3, 60, PART_ROWS, 2 * PART_ROWS + 5] if index < 8 else [0, 3, 60])
    reply = lab.text(index, draw.randint(1, 9))
    return lab.make_turn(lab.question(index, audio), reply, index, sampling=sampling)


@dataclass
class Visit:
    """A session on its way: what it has still to be fed, and whether it will leave early."""

    key: SegmentKey
    turn: Turn
    chunks: list[InputChunk]
    leaves: bool
    output: SegmentOutput = field(default_factory=SegmentOutput)
    fed: int = 0

    @property
    def frames(self) -> list[list[int]]:
        return [
            row
            for each in self.output.emitted
            if each.tensors
            for row in each.tensors["codes"].tolist()
        ]


def mixed_chunks(turn: Turn, draw: random.Random) -> list[InputChunk]:
    """The turn's input in pieces, prompt and tokens in any order of their own."""
    prompt = turn.prompt_chunks(draw.choice([2, 50, 1000]))
    tokens = turn.token_chunks(draw.choice([1, 3, 1000]))
    order = ["p"] * len(prompt) + ["t"] * len(tokens)
    draw.shuffle(order)
    return [(prompt if each == "p" else tokens).pop(0) for each in order]


class Crowd:
    """Sessions that join, are fed, are held, step and leave, as a seeded dice says."""

    def __init__(self, engine: Engine, visits: list[Visit], draw: random.Random) -> None:
        self._engine, self._draw = engine, draw
        self._coming = visits
        self._here: dict[SegmentKey, Visit] = {}

    def run(self) -> None:
        while self._coming or self._here:
            for _ in range(self._draw.randint(0, 8)):
                if self._coming:
                    self._join(self._coming.pop())
            for visit in list(self._here.values()):
                self._touch(visit)
            self._step()

    def _join(self, visit: Visit) -> None:
        self._engine.admit(visit.key, visit.turn.settings)
        self._here[visit.key] = visit

    def _touch(self, visit: Visit) -> None:
        if self._draw.random() < 0.6 and visit.fed < len(visit.chunks):
            self._engine.accept(visit.key, visit.chunks[visit.fed])
            visit.fed += 1
        if visit.leaves and self._draw.random() < 0.1:
            self._leave(visit)

    def _leave(self, visit: Visit) -> None:
        self._engine.release(visit.key)
        del self._here[visit.key]

    def _step(self) -> None:
        held = {key for key in self._here if self._draw.random() < 0.2}
        for event in self._engine.step(held):
            visit = self._here[event.key]
            assert visit.key not in held
            assert not isinstance(event, Failed)
            if isinstance(event, Emitted):
                visit.output.emitted.append(event)
            else:
                visit.output.completed = event
                self._leave(visit)


@pytest.mark.parametrize(("sessions", "seed"), [(1, 0), (4, 1), (16, 2), (64, 3)])
def test_codes_equal_those_alone_when_sessions_join_and_leave_at_random(
    crowd: tuple[Lab, Engine], plain_answers: PlainAnswers, sessions: int, seed: int
) -> None:
    (lab, engine), draw = crowd, random.Random(seed)
    visits = []
    for index in range(sessions):
        turn = make_turn(lab, index, draw)
        chunks = mixed_chunks(turn, draw)
        key = SegmentKey(f"session {index}", 0)
        visits.append(Visit(key, turn, chunks, leaves=draw.random() < 0.25))
    Crowd(engine, list(visits), draw).run()
    stayed = 0
    for index, visit in enumerate(visits):
        alone = codes_of(lab, run_segment(engine, visit.turn.settings, visit.turn.chunks()))
        asked = lab.directory, seed, index
        if asked not in plain_answers:
            plain = run_segment(lab.stage.engine, visit.turn.settings, visit.turn.chunks())
            plain_answers[asked] = codes_of(lab, plain).tolist()
        assert alone.tolist() == plain_answers[asked]
        frames = len(visit.frames)
        assert visit.frames == alone.tolist()[:frames]
        if visit.output.completed is not None:
            stayed += 1
            assert codes_of(lab, visit.output).tolist() == alone.tolist()
    assert stayed > sessions // 2 - 1


def scattered(count: int, draw: random.Random) -> Iterator[tuple[int, int]]:
    """Slots and positions of `count` sessions."""
    for slot in draw.sample(range(SLOTS), count):
        yield slot, draw.choice([1, 30, 63, 64, 200])


@pytest.mark.parametrize("count", [1, 2, 7, 16, 40])
@torch.inference_mode()
def test_states_have_the_same_digits_when_others_share_the_forward(lab: Lab, count: int) -> None:
    draw, generator = random.Random(count), torch.Generator().manual_seed(count)
    decoder = Decoder(lab.model.talker.model, 300, batch_invariant=True, exact_norms=False)
    cache = KVCache(decoder.shape, SLOTS, 300)
    for layer in range(decoder.shape.layers):
        memory = cache.layer(layer)
        memory.copy_(torch.randn(memory.shape, generator=generator))
    spans = sorted((Span(*each) for each in scattered(count, draw)), key=decoder.order)
    taken = {span.slot for span in spans}
    free = next(slot for slot in range(SLOTS) if slot not in taken)
    prompts = [Span(free, 0, 40)] if count > 1 else []
    rows = torch.randn(40 * len(prompts) + count, lab.shape.talker_hidden, generator=generator)
    together, _ = decoder.append(rows, decoder.plan(cache, [*prompts, *spans]))
    for index, span in enumerate(spans, 40 * len(prompts)):
        alone, _ = decoder.append(rows[index, None], decoder.plan(cache, [span]))
        assert torch.equal(alone[0], together[index])
    for prompt in prompts:
        alone, _ = decoder.append(rows[:40], decoder.plan(cache, [prompt]))
        assert torch.equal(alone[:40], together[:40])


def test_long_prompt_does_not_delay_short_ones_when_it_came_first(small: Lab) -> None:
    engine = small.stage.engine
    long, short = small.turn(5, audio=1100), small.turn(2)
    keys = SegmentKey("long", 0), SegmentKey("short", 0)
    for key, turn in zip(keys, (long, short), strict=True):
        engine.admit(key, turn.settings)
        for chunk in turn.chunks():
            engine.accept(key, chunk)
    events = engine.step()
    assert [event.key for event in events] == [keys[1]]
    for key in keys:
        engine.release(key)


def test_frame_comes_in_one_step_when_the_prompt_was_there_before(small: Lab) -> None:
    turn, key = small.turn(5, audio=200), SegmentKey("early", 0)
    engine = small.stage.engine
    engine.admit(key, turn.settings)
    for chunk in turn.prompt_chunks():
        engine.accept(key, chunk)
    assert engine.step() == []
    assert engine.awaited_edge(key) == "tokens"
    engine.accept(key, turn.token_chunks()[0])
    (frame,) = engine.step()
    assert isinstance(frame, Emitted)
    expected = small.reference(turn).codes[:1]
    assert np.array_equal(frame.tensors["codes"], expected)
    engine.release(key)


def test_first_frame_does_not_wait_for_the_prompts_of_others(small: Lab) -> None:
    engine, turn = small.stage.engine, small.turn(2)
    keys = [SegmentKey(name, 0) for name in ("early", "late")]
    for key in keys:
        engine.admit(key, turn.settings)
    prompt, tokens = turn.prompt_chunks(), turn.token_chunks(per_chunk=1)
    for chunk in prompt:
        engine.accept(keys[0], chunk)
    assert engine.step() == []
    engine.accept(keys[0], tokens[0])
    for chunk in prompt:
        engine.accept(keys[1], chunk)
    assert [event.key for event in engine.step()] == keys[:1]
    assert engine.awaited_edge(keys[1]) is None  # Its prompt is still to be read.
    # The next frame shares a step with it.
    engine.accept(keys[0], tokens[1])
    engine.accept(keys[1], tokens[0])
    assert [event.key for event in engine.step()] == keys
    for key in keys:
        engine.release(key)
