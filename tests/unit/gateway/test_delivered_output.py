"""What a client gets of an answer that is made several times: each part once, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator

import numpy as np
import pytest

from antiphon.errors import Unavailable
from antiphon.values.chunk import Tensor
from antiphon.values.conversation import ToolCall
from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason
from antiphon_gateway.failover.delivered import DeliveredOutput
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    ImageFile,
    ImageProduced,
    SegmentFinished,
    SegmentStarted,
    SegmentUsage,
    TextProduced,
    ToolCallPiece,
    ToolCallsProduced,
)

TEXT = "Größe: 鐘 rings twice. " * 5
"""Its characters are 1, 2 and 3 bytes long."""
FRAMES = np.arange(40 * 4, dtype=np.uint16).reshape(40, 4)
SAMPLES = np.arange(40 * 7, dtype=np.float32)
END = SegmentFinished(FinishReason.STOP, SegmentUsage(0, 0, 0, 0, 0, 0), {})


def ids_of(text: str) -> Tensor:
    return np.array([ord(each) for each in text], np.int32)


def answer(chance: random.Random, *, text: str = TEXT, frames: Tensor = FRAMES) -> list[Event]:
    """The whole of it, in pieces of random sizes."""
    events: list[Event] = [SegmentStarted("id", "model", 24_000)]
    at = said = 0
    while at < len(frames) or said < len(text):
        if chance.random() < 0.5:
            piece = text[said : said + chance.randint(1, 9)]
            said += len(piece)
            if piece:
                logprobs = tuple(TokenLogprob(0, each.encode(), -1.0) for each in piece)
                events.append(TextProduced(piece, ids_of(piece), logprobs))
        else:
            more = frames[at : at + chance.randint(1, 5)]
            samples = SAMPLES[at * 7 : (at + len(more)) * 7]
            if len(more):
                events.append(AudioProduced(samples, more, at * 7))
            at += len(more)
    return [*events, END]


def test_history_is_all_that_the_client_has() -> None:
    delivered = DeliveredOutput()
    assert not delivered.history.size_bytes
    ids = frames = 0
    for seed, cut in enumerate((9, 5, 30)):
        events = answer(random.Random(seed))[:cut]
        list(taken(delivered, events))
        ids = max(ids, sum(len(each.ids) for each in events if isinstance(each, TextProduced)))
        made = sum(len(each.frames) for each in events if isinstance(each, AudioProduced))
        frames = max(frames, made)
        history = delivered.history
        np.testing.assert_array_equal(history.ids, ids_of(TEXT)[:ids])
        np.testing.assert_array_equal(history.frames, FRAMES[:frames])
        delivered.start_over()
    assert ids
    assert frames


def test_history_of_frames_of_floats_are_latents() -> None:
    delivered = DeliveredOutput()
    latents = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    for at in (0, 2):
        delivered.take(AudioProduced(SAMPLES[at : at + 2], latents[at : at + 2], at))
    history = delivered.history
    np.testing.assert_array_equal(history.latents, latents[:4])
    assert not len(history.frames)
    delivered.start_over()
    rounded = (latents + np.float32(1e-6)).astype(np.float32)
    heard = delivered.take(AudioProduced(SAMPLES[:6], rounded, 0))
    assert isinstance(heard, AudioProduced)
    np.testing.assert_array_equal(heard.frames, rounded[4:])


@pytest.mark.parametrize("wrong", [0.01, np.nan])
def test_other_floats_are_found_out(wrong: float) -> None:
    delivered = DeliveredOutput()
    latents = np.ones((3, 5), np.float32)
    delivered.take(AudioProduced(SAMPLES[:3], latents, 0))
    delivered.start_over()
    changed = latents.copy()
    changed[2, 4] += wrong
    with pytest.raises(Unavailable, match="different"):
        delivered.take(AudioProduced(SAMPLES[:3], changed, 0))


def taken(delivered: DeliveredOutput, events: Iterable[Event]) -> Iterator[Event]:
    for event in events:
        told = delivered.take(event)
        if told is not None:
            yield told


def check_whole(events: list[Event]) -> None:
    """Each part is there once, in its order."""
    texts = [each for each in events if isinstance(each, TextProduced)]
    audio = [each for each in events if isinstance(each, AudioProduced)]
    assert "".join(each.text for each in texts) == TEXT
    np.testing.assert_array_equal(np.concatenate([each.ids for each in texts]), ids_of(TEXT))
    assert b"".join(e.token_bytes for each in texts for e in each.logprobs) == TEXT.encode()
    np.testing.assert_array_equal(np.concatenate([each.samples for each in audio]), SAMPLES)
    np.testing.assert_array_equal(np.concatenate([each.frames for each in audio]), FRAMES)
    starts = np.cumsum([0, *(len(each.samples) for each in audio)])
    assert [each.first_sample for each in audio] == starts[:-1].tolist()
    assert [type(each) for each in events].count(SegmentStarted) == 1
    assert events[-1] is END


@pytest.mark.parametrize("seed", range(50))
def test_attempts_that_are_cut_anywhere_make_one_answer(seed: int) -> None:
    chance, delivered, got = random.Random(seed), DeliveredOutput(), []
    for _ in range(chance.randint(0, 3)):
        events = answer(chance)
        got += taken(delivered, events[: chance.randrange(len(events))])
        delivered.start_over()
    got += taken(delivered, answer(chance))
    check_whole(got)
    assert delivered.size_bytes == len(TEXT.encode()) + 4 * len(TEXT) + FRAMES.nbytes


def test_images_are_told_once() -> None:
    images = ImageProduced((ImageFile(b"one", "image/png"), ImageFile(b"two", "image/png")))
    delivered = DeliveredOutput()
    assert delivered.take(images) == images
    delivered.start_over()
    assert delivered.take(images) is None


def piece(
    attempt: str, number: int, arguments: str, *, begins: bool, whole: str = ""
) -> ToolCallPiece:
    id_ = f"{attempt}-{number}"
    call = ToolCall(id_, "ring", whole) if whole else None
    return ToolCallPiece(number, id_, "ring", arguments, begins, call)


def test_calls_go_on_where_they_were() -> None:
    delivered = DeliveredOutput()

    def take(*pieces: ToolCallPiece) -> tuple[ToolCallPiece, ...]:
        event = delivered.take(ToolCallsProduced(pieces))
        assert event is None or isinstance(event, ToolCallsProduced)
        return event.pieces if event is not None else ()

    first = piece("a", 0, "{}", begins=True, whole="{}")
    begun = piece("a", 1, '{"é', begins=True)
    assert take(first, begun) == (first, begun)
    delivered.start_over()
    again = piece("b", 0, "{}", begins=True, whole="{}")
    whole = '{"é": 1}'
    assert take(again, piece("b", 1, '{"é": ', begins=True)) == (
        piece("a", 1, '": ', begins=False),
    )
    assert take(piece("b", 1, "1}", begins=False, whole=whole)) == (
        piece("a", 1, "1}", begins=False, whole=whole),
    )
    last = piece("b", 2, "{", begins=True)
    assert take(last) == (last,)
    delivered.start_over()
    with pytest.raises(Unavailable):
        take(piece("c", 0, '{"a"', begins=True))


def test_attempt_that_ends_before_a_call_does_is_found_out() -> None:
    delivered = DeliveredOutput()
    delivered.take(ToolCallsProduced((piece("a", 0, "{}", begins=True, whole="{}"),)))
    delivered.start_over()
    delivered.take(ToolCallsProduced((piece("b", 0, "{}", begins=True),)))
    with pytest.raises(Unavailable):
        delivered.take(END)


@pytest.mark.parametrize("cut", [2, 10])
@pytest.mark.parametrize("other", ["text", "ids", "frames"])
def test_an_attempt_that_makes_something_else_is_found_out(other: str, cut: int) -> None:
    delivered = DeliveredOutput()
    text, frames = TEXT[:cut], FRAMES[:cut]
    delivered.take(TextProduced(text, ids_of(text)))
    delivered.take(AudioProduced(SAMPLES[: cut * 7], frames, 0))
    delivered.start_over()
    changed = frames.copy()
    changed[-1, -1] += 1
    ids = ids_of(text)
    ids[-1] += other == "ids"
    said = TextProduced(text[:-1] + "#" if other == "text" else text, ids)
    heard = AudioProduced(SAMPLES[: cut * 7], changed, 0)
    with pytest.raises(Unavailable, match="different"):
        delivered.take(heard if other == "frames" else said)


@pytest.mark.parametrize("missing", [TextProduced, AudioProduced])
def test_an_attempt_that_ends_before_what_was_delivered_is_found_out(missing: type) -> None:
    chance, delivered = random.Random(0), DeliveredOutput()
    for event in answer(chance)[:-1]:
        delivered.take(event)
    delivered.start_over()
    others = [each for each in answer(chance)[:-1] if not isinstance(each, missing)]
    assert list(taken(delivered, others)) == []
    with pytest.raises(Unavailable, match="different"):
        delivered.take(END)
