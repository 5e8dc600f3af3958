"""How many recordings, images and videos a stage takes, from its arguments and checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.errors import InvalidArgument
from antiphon_services.vllm.media import MediaLimits, media_limits

ALL = MediaLimits()


def limits(told: Any = None, *, hears: bool = True, sees: bool = True) -> MediaLimits:
    given = {} if told is None else {"limit_mm_per_prompt": told}
    return media_limits(given, hears=hears, sees=sees)


def test_everything_is_taken_that_the_checkpoint_can() -> None:
    assert limits() == ALL
    assert limits(sees=False) == MediaLimits(audio=ALL.audio, image=0, video=0)
    assert limits(hears=False, sees=False) == MediaLimits(0, 0, 0)
    assert ALL.sees
    assert not limits(sees=False).sees


def test_an_operator_changes_what_he_names() -> None:
    assert limits({"image": 2}) == MediaLimits(ALL.audio, 2, ALL.video)
    assert limits({"image": 0, "video": 0}) == MediaLimits(ALL.audio, 0, 0)
    assert limits({"audio": 0}, sees=False) == MediaLimits(0, 0, 0)
    assert limits({"image": 0}, sees=False) == limits(sees=False)


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"smell": 1}, "smell"),
        ({"image": -1}, "image"),
        ({"image": True}, "image"),
        ({"image": {"count": 1}}, "image"),
        (["image"], "mapping"),
    ],
)
def test_what_is_no_limit_is_refused(told: Any, why: str) -> None:
    with pytest.raises(InvalidArgument, match=why) as raised:
        limits(told)
    assert raised.value.field == "engine_args"


@pytest.mark.parametrize("told", [{"image": 1}, {"video": 1}])
def test_a_limit_is_refused_where_nothing_can_be_seen(told: dict[str, int]) -> None:
    with pytest.raises(InvalidArgument, match="must be 0"):
        limits(told, sees=False)
