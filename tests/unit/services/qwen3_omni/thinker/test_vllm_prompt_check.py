"""Prompts that would end vLLM's engine are refused before it sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon_services.thinker.vision import Visual
from antiphon_services.thinker.vllm_engine.prompt_check import PromptCheck

AUDIO, IMAGE, VIDEO, VOCABULARY = 50, 51, 52, 60
SPECIAL = SpecialIds(40, 41, 42, 43, 44, 45, 46, audio=AUDIO, image=IMAGE, video=VIDEO)
CHECK = PromptCheck(SPECIAL, VOCABULARY, hears=True)


def visual(kind: Literal["image", "video"], positions: int) -> Visual:
    """Something that takes so many positions."""
    return Visual(kind, (1, 1, positions), 1, lambda: Image.new("RGB", (1, 1)), 1)


@dataclass
class Prompt:
    """Ids with recordings whose windows take so many positions, and with what is seen."""

    ids: list[int]
    heard: Sequence[Sequence[int]]
    visuals: Sequence[Visual]

    def short_ids(self, check: PromptCheck = CHECK, *, is_open: bool = False) -> list[int]:
        ids = np.array(self.ids, np.int32)
        short: list[int] = check.short_ids(ids, self.heard, self.visuals, is_open=is_open).tolist()
        return short


def prompt(ids: list[int], *positions: int, visuals: Sequence[Visual] = ()) -> Prompt:
    """One whose recordings have one window each."""
    return Prompt(ids, [[each] for each in positions], visuals)


def test_each_recording_keeps_one_place() -> None:
    ids = [1, AUDIO, AUDIO, AUDIO, 2, AUDIO, 3]
    assert prompt(ids, 3, 1).short_ids() == [1, AUDIO, 2, AUDIO, 3]


def test_each_image_and_video_keeps_one_place() -> None:
    ids = [1, IMAGE, IMAGE, 2, AUDIO, AUDIO, AUDIO, 3, VIDEO, VIDEO, 4, IMAGE, 5]
    visuals = (visual("image", 2), visual("video", 2), visual("image", 1))
    short = prompt(ids, 3, visuals=visuals).short_ids()
    assert short == [1, IMAGE, 2, AUDIO, 3, VIDEO, 4, IMAGE, 5]


def test_each_window_of_a_recording_has_a_place() -> None:
    ids = [1, AUDIO, AUDIO, AUDIO, 2, AUDIO, AUDIO, 3]
    short = Prompt(ids, [[2, 1], [2]], ()).short_ids()
    assert short == [1, AUDIO, AUDIO, 2, AUDIO, 3]


def test_open_prompt_may_end_within_a_recording_or_before_it() -> None:
    ids = [1, AUDIO, AUDIO, 2, AUDIO, AUDIO]
    assert Prompt(ids, [[2], [1, 1]], ()).short_ids(is_open=True) == [1, AUDIO, 2, AUDIO, AUDIO]
    assert Prompt(ids[:4], [[2], []], ()).short_ids(is_open=True) == [1, AUDIO, 2]
    seen = Prompt([1, IMAGE], [], [visual("image", 1)])
    with pytest.raises(InvalidArgument, match="ends with"):
        seen.short_ids(is_open=True)


def test_words_stay_as_they_are() -> None:
    assert prompt([1, 2, 0, VOCABULARY - 1]).short_ids() == [1, 2, 0, 59]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        pytest.param(prompt([1, AUDIO, AUDIO], 2), "ends with", id="place at the end"),
        pytest.param(prompt([1, AUDIO, AUDIO, AUDIO, 2], 2, 1), "separate", id="adjacent"),
        pytest.param(prompt([1, AUDIO, 2, AUDIO, 3], 1), "placeholders", id="more places"),
        pytest.param(prompt([1, AUDIO, 2], 1, 1), "placeholders", id="more recordings"),
        pytest.param(prompt([1, AUDIO, 2]), "placeholders", id="recordings are not supported"),
        pytest.param(prompt([1, AUDIO, 2], 2), "placeholders", id="wrong length"),
        pytest.param(prompt([1, VOCABULARY]), "vocabulary", id="above the vocabulary"),
        pytest.param(prompt([1, -1]), "vocabulary", id="negative"),
        pytest.param(prompt([1, IMAGE, 2]), "images", id="no image"),
        pytest.param(prompt([1, VIDEO, 2]), "videos", id="no video"),
        pytest.param(
            prompt([1, IMAGE, 2], visuals=[visual("video", 1)]), "images", id="other kind"
        ),
        pytest.param(
            prompt([1, IMAGE, IMAGE, 2], visuals=[visual("image", 1)] * 2),
            "separate",
            id="images adjacent",
        ),
        pytest.param(
            prompt([1, IMAGE, AUDIO, 2], 1, visuals=[visual("image", 1)]),
            "adjacent",
            id="image beside a recording",
        ),
        pytest.param(
            prompt([1, IMAGE], visuals=[visual("image", 1)]), "ends with", id="image at the end"
        ),
    ],
)
def test_prompt_is_refused_by_name_when_vllm_would_die_of_it(bad: Prompt, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words) as raised:
        bad.short_ids()
    assert raised.value.field == "messages"


def test_recordings_are_refused_where_none_can_be_heard() -> None:
    deaf = PromptCheck(SPECIAL, VOCABULARY, hears=False)
    assert prompt([1, 2]).short_ids(deaf) == [1, 2]
    with pytest.raises(InvalidArgument, match="pipeline_parallel_size"):
        prompt([1, AUDIO, 2], 1).short_ids(deaf)
