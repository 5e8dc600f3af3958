"""A recording that is taken in while it is made, thinker and talker: streamed equals whole.

`--stage-engine vllm` puts the thinker on its other engine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.errors import InvalidArgument, NotFound
from antiphon.runtime.engine import (
    Completed,
    DetachedEngine,
    Emitted,
    Engine,
    Failed,
    InputChunk,
    PreparingEngine,
    SegmentSettings,
)
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import (
    AudioPart,
    Conversation,
    ConversationMessage,
    TextPart,
    recording_key,
    to_tensors,
)
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.qwen3_omni.talker.engine import TalkerEngine
from antiphon_services.qwen3_omni.talker.load import load as load_talker
from antiphon_services.qwen3_omni.thinker.load import DEFAULT_SAMPLING
from antiphon_services.qwen3_omni.thinker.load import load as load_thinker
from antiphon_testkit.conversations import live_chunks
from antiphon_testkit.drive_engine import await_ready
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen3_omni.reference import Case, Reference, ReferenceOutput
from antiphon_testkit.qwen3_omni.tiny_checkpoint import SMALL, build_tiny_checkpoint

pytestmark = [
    # vLLM's imports alone take long on a busy machine; and it and they warn of their own futures.
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("default"),
]

RATE_HZ = 16_000
TOKENS = 24
SPEECH = frozenset({"text", "prompt", "tokens"})
CODES = frozenset({"codes"})
TALKS = Sampling(0.0, 50, 1.0, 1.05, seed=0, max_tokens=TOKENS)
PIECES = {"20 ms": 320, "1 s": RATE_HZ, "random": 0}

BLOCK = 32
# vLLM's attention on CPUs has no heads of 16.
SHAPES = {"torch": (SMALL, 3), "vllm": (replace(SMALL, head_dim=32), 18)}
"""Shape and seed of the checkpoint, in whose answers no choice is close."""
ENGINE_ARGS = {"torch": {}, "vllm": {"block_size": BLOCK, "kv_cache_memory_bytes": 128 << 20}}

Float32 = npt.NDArray[np.float32]


def spoken(seconds: float, *, loud_end: bool = False, seed: int = 0) -> Float32:
    """Tones that come and go, over silence; with a bang at the end."""
    count = round(seconds * RATE_HZ)
    at = np.arange(count)
    quiet = np.random.default_rng(seed).standard_normal(count) * (1e-5 if loud_end else 2e-3)
    voice = np.sin(at * (0.05 + 0.01 * seed)) * 0.02 * np.maximum(np.sin(at / 9000), 0) ** 2
    made = quiet + voice
    if loud_end:
        made[-400:] += 0.9 * np.sin(np.arange(400) * 0.7)
    return made.astype(np.float32)


def sizes(size: int) -> Iterator[int]:
    """Of pieces: that size for ever; 0: random ones."""
    draw = np.random.default_rng(7)
    while True:
        yield size or int(draw.integers(1, 3 * RATE_HZ))


def question(*said: Float32) -> Conversation:
    """Turns of a user, each answered but the last."""
    messages = [ConversationMessage("system", (TextPart("Hear"),))]
    for index in range(len(said)):
        messages.append(ConversationMessage("user", (AudioPart(index, alone=True),)))
        messages.append(ConversationMessage("assistant", (TextPart("Two people"),)))
    return Conversation(tuple(messages[:-1]), said)


def replace_recordings(said: Conversation, *recordings: Tensor) -> Conversation:
    return Conversation(said.messages, recordings)


@dataclass
class Heard:
    """What one turn made, and how many prompt positions each stage had before the input's end."""

    ids: list[int]
    codes: npt.NDArray[np.int64]
    completed: Completed
    before: tuple[int, int] = (0, 0)
    again: bool = False
    talked: Completed | None = None


class Ears:
    """A thinker and a talker, side by side.

    A thinker may compute up to `redone` positions again of what it has.
    """

    def __init__(self, directory: Path, engine: str) -> None:
        config = StageConfig(engine=engine, context_limit=4096, engine_args={**ENGINE_ARGS[engine]})
        loaded = load_thinker(directory, config)
        assert loaded.facts.engine == engine
        talker = load_talker(directory, StageConfig()).engine
        assert isinstance(talker, TalkerEngine)
        self.thinker, self.talker = loaded.engine, talker
        self.redone = BLOCK if engine == "vllm" else 0
        self._turns = 0

    def close(self) -> None:
        assert isinstance(self.thinker, PreparingEngine | DetachedEngine)
        self.thinker.close()

    def ask(self, conversation: Conversation, size: int | None, *, finish: bool = True) -> Heard:
        """Ask in pieces of a size, or whole."""
        self._turns += 1
        turn = _Turn(self, SegmentKey("spoken", self._turns), live=size is not None)
        if size is None:
            turn.hear(InputChunk("input", 0, to_tensors(conversation), True, FinishReason.STOP))
            return turn.end()
        *chunks, end = live_chunks(conversation, sizes(size))
        for chunk in chunks:
            turn.hear(chunk)
        turn.note()
        if not finish:
            turn.drop()
            return turn.heard()
        turn.hear(end)
        return turn.end()


class _Turn:
    def __init__(self, ears: Ears, key: SegmentKey, *, live: bool) -> None:
        self._ears, self._key = ears, key
        sampling = replace(DEFAULT_SAMPLING, max_tokens=TOKENS)
        ears.thinker.admit(key, SegmentSettings("", sampling, SPEECH, live=live))
        ears.talker.admit(key, SegmentSettings("", TALKS, CODES, live=live))
        self._ids: list[int] = []
        self._codes: list[npt.NDArray[np.int64]] = []
        self._completed: dict[str, Completed] = {}
        self._before = (0, 0)
        self._furthest = -1
        self._again = False

    def hear(self, chunk: InputChunk) -> None:
        self._ears.thinker.accept(self._key, chunk)
        self._run()

    def note(self) -> None:
        thinker = self._ears.thinker.so_far(self._key).input_positions
        self._before = thinker, self._ears.talker.segments[self._key].prefilled

    def drop(self) -> None:
        self._completed["thinker"] = self._ears.thinker.so_far(self._key)
        self._ears.thinker.release(self._key)
        self._ears.talker.release(self._key)

    def end(self) -> Heard:
        assert set(self._completed) == {"thinker", "talker"}
        return self.heard()

    def heard(self) -> Heard:
        codes = np.concatenate(self._codes) if self._codes else np.empty((0, 0), np.int64)
        thought, talked = self._completed["thinker"], self._completed.get("talker")
        return Heard(self._ids, codes, thought, self._before, self._again, talked)

    def _run(self) -> None:
        ears, key = self._ears, self._key
        while "thinker" not in self._completed and ears.thinker.awaited_edge(key) is None:
            await_ready(ears.thinker, [key])
            for event in ears.thinker.step():
                self._take("thinker", event)
        while "talker" not in self._completed and ears.talker.awaited_edge(key) is None:
            for event in ears.talker.step():
                self._take("talker", event)

    def _take(self, role: str, event: object) -> None:
        match event:
            case Failed(_, error):
                self._ears.thinker.release(self._key)
                self._ears.talker.release(self._key)
                raise error
            case Completed():
                self._completed[role] = event
                engine = self._ears.thinker if role == "thinker" else self._ears.talker
                engine.release(self._key)
            case Emitted(_, "text", _, tensors):
                self._ids += tensors["ids"].tolist()
            case Emitted(_, "codes", _, tensors) if tensors:
                self._codes.append(tensors["codes"].astype(np.int64))
            case Emitted(_, ("prompt" | "tokens") as edge, position, tensors, reason):
                if len(where := tensors.get("row_positions", ())):
                    self._again |= where[0] <= self._furthest
                    self._furthest = int(where[-1])
                ended = reason is not None
                chunk = InputChunk(edge, position, tensors, ended, reason)
                self._ears.talker.accept(self._key, chunk)


@pytest.fixture(scope="module")
def thinker_engine(request: pytest.FixtureRequest) -> str:
    return str(request.config.getoption("--stage-engine"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory, thinker_engine: str) -> Path:
    torch.set_num_threads(1)
    directory = tmp_path_factory.mktemp("listening") / "tiny"
    build_tiny_checkpoint(directory, *SHAPES[thinker_engine])
    return directory


@pytest.fixture(scope="module")
def ears(directory: Path, thinker_engine: str) -> Iterator[Ears]:
    made = Ears(directory, thinker_engine)
    yield made
    made.close()


class Truth:
    """What Hugging Face answers, once for each recording."""

    def __init__(self, reference: Reference) -> None:
        self._reference = reference
        self.answer = cache(self._answer)

    def of(self, conversation: Conversation) -> ReferenceOutput:
        case = Case(conversation, thinker_max_tokens=TOKENS, talker_max_tokens=TOKENS)
        answer = self._reference.run(case)
        assert answer.min_margin >= MIN_MARGIN
        return answer

    def _answer(self, seconds: float, loud_end: bool) -> ReferenceOutput:
        return self.of(question(spoken(seconds, loud_end=loud_end)))


@pytest.fixture(scope="module")
def truth(directory: Path) -> Truth:
    return Truth(Reference(directory))


def assert_equal(heard: Heard, expected: ReferenceOutput) -> None:
    assert heard.ids == expected.text_ids.tolist()
    assert heard.codes.tolist() == expected.codes.tolist()
    assert heard.completed.input_positions == len(expected.prompt_ids)


RECORDINGS = [(1.0, False), (7.9, False), (8.0, True), (30.0, False), (30.0, True)]


@pytest.mark.parametrize("size", PIECES.values(), ids=PIECES.keys())
@pytest.mark.parametrize(("seconds", "loud_end"), RECORDINGS)
def test_streamed_equals_whole_and_the_reference(
    ears: Ears, truth: Truth, seconds: float, loud_end: bool, size: int
) -> None:
    heard = ears.ask(question(spoken(seconds, loud_end=loud_end)), size)
    assert_equal(heard, truth.answer(seconds, loud_end))
    windows = int((seconds * RATE_HZ - 40) // (8 * RATE_HZ))
    assert heard.before[0] >= 104 * windows
    # What is louder than all before has windows computed anew. The long recordings have that: the
    # tones of the quiet one, too, are loudest in its second window (by 0.0013 of a log10, which
    # moves the floor of two cells of the first).
    assert heard.again == (windows > 0)


def test_both_stages_have_all_but_the_last_window_of_a_long_recording(
    ears: Ears, truth: Truth
) -> None:
    recording = spoken(200.0)
    heard = ears.ask(question(recording), 2 * RATE_HZ)
    assert_equal(heard, truth.of(question(recording)))
    assert heard.before[0] >= 24 * 104
    assert heard.before[1] >= 24 * 104


def test_later_turn_reuses_what_was_heard_and_equals_the_reference(
    ears: Ears, truth: Truth
) -> None:
    first, second = spoken(9.0, seed=1), spoken(17.0, seed=7)
    one = ears.ask(question(first), RATE_HZ)
    assert_equal(one, truth.of(question(first)))
    two = ears.ask(question(first, second), RATE_HZ)
    assert_equal(two, truth.of(question(first, second)))
    # All of the first turn but what follows its recording was there.
    there = two.completed.input_cached_positions + ears.redone
    assert there >= one.completed.input_positions - 10
    if not ears.redone and one.talked and two.talked:
        # All of the talker's prompt but the nine rows of the answer.
        assert two.talked.input_cached_positions == one.talked.input_positions - 9
    # Another recording, longer than both, changes nothing of theirs.
    third = ears.ask(question(first, second, spoken(20.0, seed=3)), RATE_HZ)
    there = third.completed.input_cached_positions + ears.redone
    assert there >= two.completed.input_positions - 10


def key_of(said: Float32) -> npt.NDArray[np.uint8]:
    return np.frombuffer(recording_key(said), np.uint8)


@pytest.mark.parametrize("size", [None, RATE_HZ], ids=["whole", "in pieces"])
def test_recording_that_came_before_is_told_by_its_key(
    ears: Ears, truth: Truth, size: int | None
) -> None:
    first, second = spoken(9.0, seed=1), spoken(17.0, seed=7)
    ears.ask(question(first), size)
    named = replace_recordings(question(first, second), key_of(first), second)
    heard = ears.ask(named, RATE_HZ if size is None else None)
    assert_equal(heard, truth.of(question(first, second)))
    there = heard.completed.input_cached_positions + ears.redone
    assert there >= 117


@pytest.mark.parametrize("size", [None, RATE_HZ], ids=["whole", "in pieces"])
def test_key_of_a_recording_that_is_not_known_is_not_found(ears: Ears, size: int | None) -> None:
    said = question(spoken(2.0, seed=8), spoken(9.0, seed=9))
    named = replace_recordings(said, key_of(said.recordings[0]), said.recordings[1])
    with pytest.raises(NotFound) as unknown:
        ears.ask(named, size)
    assert unknown.value.field == "audio.0"


@pytest.mark.parametrize("seconds", [(0.4, 0.7), (0.7, 1.5), (2.0, 0.4), (0.5, 8.3)])
def test_short_recordings_are_encoded_as_in_the_reference(
    ears: Ears, truth: Truth, seconds: tuple[float, float]
) -> None:
    said = question(*(spoken(each, seed=at) for at, each in enumerate(seconds)))
    assert_equal(ears.ask(said, RATE_HZ // 4), truth.of(said))


def test_turn_that_is_dropped_while_it_is_heard_leaves_what_was_said_before(ears: Ears) -> None:
    said = question(spoken(9.0, seed=4), spoken(17.0, seed=5))
    ears.ask(question(spoken(9.0, seed=4)), RATE_HZ)
    dropped = ears.ask(said, RATE_HZ, finish=False)
    assert dropped.completed.finish_reason is FinishReason.CANCELLED
    again = ears.ask(question(*said.recordings[:1], spoken(2.0, seed=6)), None)
    assert again.completed.input_cached_positions + ears.redone > 117


@pytest.mark.parametrize(
    ("chunks", "field"),
    [
        ([{"samples": np.zeros(9, np.float32)}], "messages"),
        ([to_tensors(question(spoken(1.0)))], "messages"),
        ([{}, {"samples": np.full(9, np.nan, np.float32)}], "audio.0"),
        ([{}, {"samples": np.zeros(1801 * RATE_HZ, np.float32)}], "audio.0"),
        ([{}, {"samples": np.zeros(399, np.float32)}, None], "audio.0"),
        ([{}, {}], "messages"),
    ],
    ids=["samples first", "none is open", "NaN", "too long", "too short", "twice"],
)
def test_input_that_cannot_be_heard_is_refused(
    ears: Ears, chunks: list[dict[str, Float32] | None], field: str
) -> None:
    with pytest.raises(InvalidArgument) as refused:
        give(ears.thinker, chunks)
    assert refused.value.field == field


def give(thinker: Engine, chunks: list[dict[str, Float32] | None]) -> None:
    """Open a live segment with these chunks; {} is the conversation, None the end."""
    key = SegmentKey("refused", 0)
    part = AudioPart(0, alone=True, live=True)
    opened = to_tensors(Conversation((ConversationMessage("user", (part,)),)))
    thinker.admit(key, SegmentSettings("", DEFAULT_SAMPLING, SPEECH, live=True))
    try:
        for tensors in chunks:
            given = opened if tensors == {} else tensors or {}
            reason = FinishReason.STOP if tensors is None else None
            thinker.accept(key, InputChunk("input", 0, given, reason is not None, reason))
        while thinker.awaited_edge(key) is None:
            await_ready(thinker, [key])
            for event in thinker.step():
                if isinstance(event, Failed):
                    raise event.error
    finally:
        thinker.release(key)
