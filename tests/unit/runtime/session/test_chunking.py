from __future__ import annotations

import pytest

from antiphon.runtime.session.chunking import due, next_boundary
from antiphon.values.segment import ChunkPolicy

POLICIES = [
    ChunkPolicy(first=1, ramp=(2, 4, 8), steady=12),
    ChunkPolicy(first=4, ramp=(), steady=25),
    ChunkPolicy(first=1, ramp=(), steady=1),
    ChunkPolicy(first=3, ramp=(1, 7), steady=2),
]


def test_next_boundary_follows_first_ramp_and_steady() -> None:
    policy = ChunkPolicy(first=1, ramp=(2, 4), steady=5)
    boundaries = []
    sent = 0
    for _ in range(6):
        sent = next_boundary(sent, policy)
        boundaries.append(sent)
    assert boundaries == [1, 3, 7, 12, 17, 22]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("finish_with_frame", [True, False])
def test_due_delivers_every_frame_once_when_frames_come_one_by_one(
    policy: ChunkPolicy, finish_with_frame: bool
) -> None:
    for frames in range(201):
        sent = 0
        for total in range(1, frames + 1):
            last = total == frames and finish_with_frame
            sizes = due(total, sent, finished=last, policy=policy)
            assert all(size > 0 for size in sizes)
            sent += sum(sizes)
            assert sent <= total
        if not finish_with_frame or frames == 0:
            sent += sum(due(frames, sent, finished=True, policy=policy))
        assert sent == frames


def test_due_is_empty_when_the_segment_ends_on_a_boundary() -> None:
    policy = ChunkPolicy(first=4, ramp=(), steady=25)
    for frames in (0, 4, 29, 54):
        assert due(frames, frames, finished=True, policy=policy) == []


def test_due_cuts_several_chunks_when_many_frames_come_at_once() -> None:
    policy = ChunkPolicy(first=1, ramp=(2, 4), steady=5)
    assert due(20, 0, finished=False, policy=policy) == [1, 2, 4, 5, 5]
    assert due(20, 0, finished=True, policy=policy) == [1, 2, 4, 5, 5, 3]
