"""Windows of frames: every frame is decoded once, whenever frames come."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon_services.mimo_audio.code2wav.windows import SEGMENT_FRAMES, DecodeWindow, WindowPlan

STREAMED = WindowPlan(20, 250, 40)
COUNTS = (1, 19, 20, 21, 40, 59, 60, 61, 80, 1499, 1500, 1501, 1540, 3000, 3010)


def windows(plan: WindowPlan, arrivals: list[int]) -> list[DecodeWindow]:
    """All windows, as frames come: so many in all with each arrival, the last of which is all."""
    made, sent = [], 0
    for number, come in enumerate(arrivals, 1):
        finished = number == len(arrivals)
        while (window := plan.following(sent, come, finished=finished)) is not None:
            made.append(window)
            sent = window.stop
    return made


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("plan", [STREAMED, WindowPlan(None), WindowPlan(20, 0, 0)])
def test_every_frame_is_decoded_once(count: int, plan: WindowPlan) -> None:
    """Also where the last frame ends a block, or a segment: nothing comes twice."""
    made = windows(plan, [count])
    owned = [at for each in made for at in range(each.first, each.stop)]
    assert owned == list(range(count))
    for each in made:
        assert 0 <= each.left <= each.first < each.stop <= each.right <= count
        assert each.left // SEGMENT_FRAMES == (each.right - 1) // SEGMENT_FRAMES


@pytest.mark.parametrize("count", COUNTS)
def test_windows_do_not_depend_on_when_frames_come(count: int) -> None:
    draw = np.random.default_rng(count)
    for _ in range(5):
        cuts = sorted({*draw.integers(1, count + 1, size=7).tolist(), count})
        assert windows(STREAMED, [*cuts, count]) == windows(STREAMED, [count])


def test_a_block_waits_for_the_frames_behind_it_and_no_longer() -> None:
    assert STREAMED.following(0, 59, finished=False) is None
    assert STREAMED.following(0, 60, finished=False) == DecodeWindow(0, 0, 20, 60)
    assert STREAMED.following(300, 360, finished=False) == DecodeWindow(50, 300, 320, 360)
    # The segment's end is no end of the stream, and nothing behind it is waited for.
    assert STREAMED.following(1480, 1500, finished=False) == DecodeWindow(1230, 1480, 1500, 1500)
    assert STREAMED.following(1500, 1510, finished=True) == DecodeWindow(1500, 1500, 1510, 1510)


def test_whole_segments_are_a_minute_each_when_all_has_come() -> None:
    plan = WindowPlan(None)
    assert plan.following(0, 2000, finished=False) is None
    assert windows(plan, [2000]) == [
        DecodeWindow(0, 0, 1500, 1500),
        DecodeWindow(1500, 1500, 2000, 2000),
    ]
