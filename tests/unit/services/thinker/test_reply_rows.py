"""Which rows of a reply leave, in whatever order ids and rows come."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.errors import DataLoss
from antiphon.values.chunk import Tensor
from antiphon.values.segment import FinishReason
from antiphon_services.text.stopping import ReleasedText
from antiphon_services.thinker.reply_rows import ReplyRows


def row(index: int, count: int = 1) -> Tensor:
    """Rows [count, 2] of ids from `index` on."""
    return np.repeat(np.arange(index, index + count, dtype=np.float32)[:, None], 2, axis=1)


def spoken(count: int, finish: FinishReason | None = None) -> ReleasedText:
    return ReleasedText("", (7,) * count, finish, speech_finish=finish)


@given(
    releases=st.lists(st.integers(0, 3), max_size=8),
    beyond=st.integers(0, 3),
    order=st.randoms(use_true_random=False),
)
def test_rows_leave_once_in_order_and_as_soon_as_they_may(
    releases: list[int], beyond: int, order: random.Random
) -> None:
    """Ids are released as `releases` says, of which the last ends the reply; `beyond` rows more
    than there are spoken ids come."""
    rows = ReplyRows()
    total = sum(releases)
    given = [spoken(count) for count in releases] + [spoken(0, FinishReason.LENGTH)]
    come, told, left = 0, 0, list[float]()
    ends = list[FinishReason]()
    while given or come < total + beyond:
        if given and (come == total + beyond or order.random() < 0.5):
            release = given.pop(0)
            told += len(release.spoken)
            rows.release(release)
        else:
            rows.come(come, row(come))
            come += 1
        leaving, finish = rows.leave()
        left += [float(each[0]) for each in leaving]
        ends += [finish] if finish else []
        assert len(left) == min(told, come)
        assert rows.complete == (not given and len(left) == total)
        assert bool(ends) == rows.complete
    assert left == list(range(total))
    assert ends == [FinishReason.LENGTH]


def test_gap_and_repetition_are_data_loss() -> None:
    rows = ReplyRows()
    rows.come(0, row(0, 3))
    for start in (4, 2):
        with pytest.raises(DataLoss, match="instead of 3"):
            rows.come(start, row(start))
