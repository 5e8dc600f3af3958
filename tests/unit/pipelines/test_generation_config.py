"""What a checkpoint says of its sampling takes the place of the reference's defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.generation_config import FILE, default_sampling
from antiphon.values.sampling import Sampling

REFERENCE = Sampling(
    temperature=0.9, top_k=50, top_p=1.0, repetition_penalty=1.05, seed=0, max_tokens=4096
)


def of(directory: Path, content: str) -> Sampling:
    (directory / FILE).write_text(content)
    return default_sampling(directory, "talker", REFERENCE)


def test_defaults_are_the_references_when_the_checkpoint_says_nothing(tmp_path: Path) -> None:
    assert default_sampling(tmp_path, "talker", REFERENCE) == REFERENCE
    assert of(tmp_path, '{"temperature": 0.1, "thinker_top_k": 3}') == REFERENCE


def test_defaults_are_the_checkpoints_when_it_names_the_stage(tmp_path: Path) -> None:
    said = (
        '{"talker_temperature": 0, "talker_repetition_penalty": 1.0, "talker_max_new_tokens": 300}'
    )
    assert of(tmp_path, said) == Sampling(
        temperature=0.0, top_k=50, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=300
    )


@pytest.mark.parametrize("setting", ["talker_do_sample", "talker_dosample"])
def test_defaults_are_greedy_when_the_checkpoint_draws_nothing(
    tmp_path: Path, setting: str
) -> None:
    assert of(tmp_path, f'{{"{setting}": false, "talker_temperature": 0.5}}').greedy
    assert of(tmp_path, f'{{"{setting}": true, "talker_temperature": 0.5}}').temperature == 0.5


def test_defaults_are_the_checkpoints_when_it_names_no_stage(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"temperature": 0.5, "top_k": 3, "subtalker_top_k": 4}')
    told = default_sampling(tmp_path, "", REFERENCE)
    assert (told.temperature, told.top_k) == (0.5, 3)
    assert default_sampling(tmp_path, "subtalker", REFERENCE).top_k == 4


@pytest.mark.parametrize(
    "content",
    [
        '{"talker_temperature": -1}',
        '{"talker_temperature": "hot"}',
        '{"talker_top_k": 1.5}',
        '{"talker_max_new_tokens": 0}',
        '{"talker_repetition_penalty": true}',
        "[]",
        "{",
    ],
)
def test_checkpoint_is_refused_when_its_settings_are_none(tmp_path: Path, content: str) -> None:
    with pytest.raises(FailedPrecondition, match=FILE):
        of(tmp_path, content)
