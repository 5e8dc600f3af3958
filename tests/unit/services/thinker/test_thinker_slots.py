from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from thinker_conversations import recording
from transformers import WhisperFeatureExtractor

from services.thinker.audio import AudioFeatures, AudioFrontEnd
from services.thinker.schedule import prefill_shares
from services.thinker.slots import (
    MIN_REUSED,
    Claim,
    Content,
    Kept,
    Slots,
    Tapped,
    prompt_content,
    shared_length,
)

LONG = 2 * MIN_REUSED


def _content(*ids: int) -> Content:
    return np.asarray(ids, dtype=np.int64)


def _kept(content: Content, prompt_length: int, rows: int = 0) -> Kept:
    tapped = Tapped(np.arange(rows), torch.arange(rows, dtype=torch.float32)[:, None])
    return Kept(content, prompt_length, tapped)


def _same(first: Claim | None, slot: int, reused: int, source: int | None) -> bool:
    return first is not None and (first.slot, first.reused, first.source) == (slot, reused, source)


def test_claim_takes_the_slot_over_when_the_prompt_goes_on_from_it() -> None:
    slots = Slots(2)
    first = slots.claim(_content(*range(LONG)))
    assert _same(first, 0, 0, None)
    slots.keep(0, _kept(_content(*range(LONG + 5)), LONG, rows=3))
    claim = slots.claim(_content(*range(LONG + 9)))
    assert _same(claim, 0, LONG + 5, None)
    assert claim is not None
    assert claim.tapped is not None
    assert claim.tapped.rows[:, 0].tolist() == [0, 1, 2]


def test_claim_copies_when_only_a_beginning_of_the_prompt_is_shared() -> None:
    slots = Slots(2)
    slots.claim(_content(*range(LONG)))
    slots.keep(0, _kept(_content(*range(LONG)), LONG, rows=LONG))
    other = _content(*range(MIN_REUSED), *[7] * LONG)
    claim = slots.claim(other)
    assert _same(claim, 1, MIN_REUSED, 0)
    assert claim is not None
    assert claim.tapped is not None
    assert len(claim.tapped.rows) == MIN_REUSED
    assert _same(slots.claim(_content(*range(LONG + 1))), 0, LONG, None)


def test_claim_reuses_nothing_when_the_beginning_is_short() -> None:
    slots = Slots(2)
    slots.claim(_content(*range(LONG)))
    slots.keep(0, _kept(_content(*range(LONG)), LONG))
    assert _same(slots.claim(_content(*range(MIN_REUSED - 1), 7, 7)), 1, 0, None)


def test_claim_leaves_the_last_position_when_the_prompt_was_seen_whole() -> None:
    slots = Slots(1)
    slots.claim(_content(*range(LONG)))
    slots.keep(0, _kept(_content(*range(LONG + 3)), LONG))
    assert _same(slots.claim(_content(*range(LONG))), 0, LONG - 1, None)


def test_claim_evicts_the_least_recently_used_when_no_slot_is_free() -> None:
    slots = Slots(2)
    contents = [_content(*range(start, start + LONG)) for start in (0, 100, 200)]
    for slot in (0, 1):
        assert _same(slots.claim(contents[slot]), slot, 0, None)
    for slot in (1, 0):
        slots.keep(slot, _kept(contents[slot], LONG))
    assert _same(slots.claim(contents[2]), 1, 0, None)
    assert _same(slots.claim(np.append(contents[0], 5)), 0, LONG, None)


def test_claim_is_none_when_all_slots_are_taken() -> None:
    slots = Slots(1)
    assert slots.claim(_content(1)) is not None
    assert slots.claim(_content(1)) is None
    slots.free(0)
    assert slots.claim(_content(1)) is not None


def test_forget_leaves_nothing_to_reuse() -> None:
    slots = Slots(1)
    slots.claim(_content(*range(LONG)))
    slots.keep(0, _kept(_content(*range(LONG)), LONG))
    slots.forget()
    assert _same(slots.claim(_content(*range(LONG + 1))), 0, 0, None)


@given(st.data())
def test_slots_never_go_to_two_and_reuse_is_what_was_kept(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 4))
    slots = Slots(count)
    running: dict[int, Content] = {}
    held: dict[int, Content] = {}
    bodies = [_content(*[n] * MIN_REUSED) for n in range(3)]
    for _ in range(data.draw(st.integers(1, 25))):
        action = data.draw(st.sampled_from(["claim", "keep", "free"]))
        if action == "claim":
            parts = data.draw(st.lists(st.sampled_from(bodies), min_size=1, max_size=4))
            content = np.concatenate(parts)
            claim = slots.claim(content)
            assert (claim is None) == (len(running) == count)
            if claim is not None:
                assert claim.slot not in running
                origin = held.get(claim.slot if claim.source is None else claim.source)
                if claim.reused:
                    assert origin is not None
                    assert origin[: claim.reused].tolist() == content[: claim.reused].tolist()
                assert claim.reused < len(content)
                held.pop(claim.slot, None)
                running[claim.slot] = content
        elif running:
            slot = data.draw(st.sampled_from(sorted(running)))
            content = running.pop(slot)
            if action == "keep":
                held[slot] = np.append(content, data.draw(st.integers(0, 2)))
                slots.keep(slot, _kept(held[slot], len(content)))
            else:
                slots.free(slot)


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [((1, 2, 3), (1, 2, 3), 3), ((1, 2), (1, 2, 3), 2), ((1, 5), (1, 2), 1), ((), (1,), 0)],
)
def test_shared_length_counts_equal_positions(
    first: tuple[int, ...], second: tuple[int, ...], length: int
) -> None:
    assert shared_length(_content(*first), _content(*second)) == length


@pytest.fixture(scope="module")
def front_end() -> AudioFrontEnd:
    return AudioFrontEnd(WhisperFeatureExtractor(feature_size=128), n_window=50, max_audio_s=60.0)


def _extract(front_end: AudioFrontEnd, *seconds: float, seed: int = 0) -> AudioFeatures:
    audio = front_end.extract([recording(each, seed=seed) for each in seconds])
    assert audio is not None
    return audio


def test_content_differs_when_the_sound_does(front_end: AudioFrontEnd) -> None:
    first, second = _extract(front_end, 0.5), _extract(front_end, 0.5, seed=1)
    ids = np.asarray([3, *[9] * first.positions[0], 4], dtype=np.int32)
    heard, again, other = (
        prompt_content(ids, 9, each) for each in (first, _extract(front_end, 0.5), second)
    )
    assert heard.tolist() == again.tolist()
    assert shared_length(heard, other) == 1
    assert (heard[1:-1] < 0).all()
    assert prompt_content(ids, 9, None).tolist() == ids.tolist()


def test_digest_differs_when_a_longer_recording_pads_the_chunks(front_end: AudioFrontEnd) -> None:
    heard = np.zeros((1, 128, 50), dtype=np.float32)
    alone = front_end._digests(heard, np.ones((1, 50), dtype=np.int32))
    mask = np.ones((2, 80), dtype=np.int32)
    mask[0, 50:] = 0
    beside = front_end._digests(np.zeros((2, 128, 80), dtype=np.float32), mask)
    assert alone[0] != beside[0]


def test_digest_is_the_same_when_recordings_fill_whole_chunks(front_end: AudioFrontEnd) -> None:
    mask = np.ones((1, 100), dtype=np.int32)
    short = front_end._digests(np.zeros((1, 128, 100), dtype=np.float32), mask)
    longer = np.ones((2, 300), dtype=np.int32)
    longer[0, 100:] = 0
    assert front_end._digests(np.zeros((2, 128, 300), dtype=np.float32), longer)[0] == short[0]


def test_shares_go_to_the_oldest_and_then_to_the_shortest() -> None:
    assert prefill_shares([1000, 300, 20], 256) == [64, 172, 20]
    assert prefill_shares([1000], 256) == [256]
    assert prefill_shares([10, 20], 256) == [10, 20]
    assert prefill_shares([5, 5], 1) == [1, 0]
    assert prefill_shares([], 256) == []


@given(st.lists(st.integers(1, 500), max_size=8), st.integers(1, 300))
def test_shares_use_the_budget_and_no_more(remaining: list[int], budget: int) -> None:
    shares = prefill_shares(remaining, budget)
    assert sum(shares) == min(sum(remaining), budget)
    assert all(0 <= share <= rows for share, rows in zip(shares, remaining, strict=True))
    assert not remaining or shares[0] > 0
