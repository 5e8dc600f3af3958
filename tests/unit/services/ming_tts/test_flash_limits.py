"""The longest duration of an utterance of Ming-flash-omni, as the vendor's code streams it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tests.equality.ming_tts.flash_cases as cases
from antiphon_services.ming_tts.talker.prompt import (
    CONTROL,
    MOST_STEPS,
    LatentPrompt,
    flash_steps,
    make_prompt,
)
from tests.equality.ming_tts.ming_cases import TEXTS

RECORDED = json.loads((Path(cases.__file__).parent / "recorded_flash.json").read_text())["longest"]


def prompt_of(text: str) -> LatentPrompt:
    """The prompt of a text, in which each character is a token."""
    control = dict.fromkeys(CONTROL, 0)
    return make_prompt(lambda each: [1] * len(each), control, text, flash=True)


@pytest.mark.parametrize("characters", cases.LIMITED)
def test_a_text_has_as_many_steps_as_recorded(characters: int) -> None:
    assert flash_steps(characters) == RECORDED[str(characters)]
    assert prompt_of("a" * characters).most_steps == RECORDED[str(characters)]


def test_no_text_has_more_steps_than_the_vendors_loop() -> None:
    assert flash_steps(10_000) == MOST_STEPS


def test_the_length_of_a_description_does_not_limit_music() -> None:
    assert prompt_of(TEXTS["music"]).most_steps == MOST_STEPS
