"""What a client gets of an answer that it had begun to hear elsewhere: the rest, and only that."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from antiphon.errors import DataLoss
from antiphon_gateway.failover.resumed import HeldPart, ResumedOutput
from antiphon_gateway.sessions.events import (
    AudioProduced,
    Event,
    ImageFile,
    ImageProduced,
    SegmentStarted,
    TextProduced,
)
from tests.unit.gateway.test_delivered_output import END, FRAMES, SAMPLES, TEXT, answer, ids_of

GROUPS = FRAMES.shape[1]


def held_of(text: str, samples: int, frames: int, *, with_ids: bool) -> HeldPart:
    """By a client that has so much."""
    return HeldPart(
        characters=len(text),
        text_sha256=hashlib.sha256(text.encode()).digest(),
        ids=len(text) if with_ids else 0,
        logprobs=len(text),
        samples=samples,
        frame_values=frames * GROUPS if with_ids else 0,
    )


def rest_of(held: HeldPart, events: list[Event], *, with_ids: bool = True) -> list[Event]:
    resumed = ResumedOutput(held, with_ids=with_ids)
    taken = (resumed.take(each) for each in events)
    return [each for each in taken if each is not None]


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("seed", range(40))
def test_the_rest_follows_whatever_has_come_and_however_it_is_cut(
    seed: int, with_ids: bool
) -> None:
    chance = random.Random(seed)
    said = chance.choice([0, 1, len(TEXT) - 1, len(TEXT), chance.randrange(len(TEXT))])
    frames = chance.choice([0, 1, len(FRAMES), chance.randrange(len(FRAMES))])
    held = held_of(TEXT[:said], frames * 7, frames, with_ids=with_ids)
    rest = rest_of(held, answer(chance), with_ids=with_ids)
    assert isinstance(rest[0], SegmentStarted)
    assert rest[-1] is END
    texts = [each for each in rest if isinstance(each, TextProduced)]
    audio = [each for each in rest if isinstance(each, AudioProduced)]
    assert "".join(each.text for each in texts) == TEXT[said:]
    assert b"".join(e.token_bytes for each in texts for e in each.logprobs) == TEXT[said:].encode()
    samples = np.concatenate([np.empty(0), *(each.samples for each in audio)])
    np.testing.assert_array_equal(samples, SAMPLES[frames * 7 :])
    if audio:
        assert audio[0].first_sample == frames * 7
    if with_ids:
        ids = np.concatenate([np.empty(0, np.int32), *(each.ids for each in texts)])
        np.testing.assert_array_equal(ids, ids_of(TEXT[said:]))
        codes = np.concatenate([np.empty((0, GROUPS)), *(each.frames for each in audio)])
        np.testing.assert_array_equal(codes, FRAMES[frames:])
    else:
        assert all(each.text for each in texts)
        assert all(len(each.samples) for each in audio)


def test_images_that_have_come_are_left_out() -> None:
    files = tuple(ImageFile(bytes([each]), "image/png") for each in range(3))
    events: list[Event] = [ImageProduced(files[:1]), ImageProduced(files[1:]), END]
    assert rest_of(HeldPart(images=2), events) == [ImageProduced(files[2:]), END]


@pytest.mark.parametrize(
    "held",
    [
        pytest.param(held_of("Other", 0, 0, with_ids=True), id="other_text"),
        pytest.param(held_of(TEXT + "!", 0, 0, with_ids=True), id="more_text"),
        pytest.param(held_of("", len(SAMPLES) + 1, 0, with_ids=True), id="more_samples"),
        pytest.param(HeldPart(images=1), id="more_images"),
        pytest.param(HeldPart(ids=len(TEXT) + 1), id="more_ids"),
    ],
)
def test_another_answer_than_the_one_that_has_begun_is_an_error(held: HeldPart) -> None:
    with pytest.raises(DataLoss) as caught:
        rest_of(held, answer(random.Random(1)))
    assert caught.value.field == "delivered"
