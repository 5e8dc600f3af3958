from typing import Any

import pytest

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.qwen2_5_omni import PlaceholderIds, code_entries, voices_by_name

INDICES = {"audio_token_index": 5, "image_token_index": 6, "video_token_index": 7}


def test_placeholders_are_read_by_either_name() -> None:
    by_id = {name.replace("index", "id"): value for name, value in INDICES.items()}
    for named in (INDICES, by_id):
        assert PlaceholderIds.from_config({"thinker_config": named}) == PlaceholderIds(5, 6, 7)


@pytest.mark.parametrize(
    "thinker", [{}, INDICES | {"image_token_index": None}, INDICES | {"video_token_index": "7"}]
)
def test_placeholders_are_refused_when_one_is_missing(thinker: dict[str, Any]) -> None:
    with pytest.raises(FailedPrecondition, match=r"config\.json: thinker_config\.\w+_token_index"):
        PlaceholderIds.from_config({"thinker_config": thinker})


def test_code_entries_are_one_more_than_the_configuration_says() -> None:
    assert code_entries({"token2wav_config": {"dit_config": {"num_embeds": 8193}}}) == 8194
    with pytest.raises(FailedPrecondition, match="num_embeds"):
        code_entries({"token2wav_config": {}})


def test_voices_are_in_lower_case_and_the_default_comes_first() -> None:
    assert list(voices_by_name({"Ethan": 1, "Zoe": 2, "Chelsie": 3}).items()) == [
        ("chelsie", 3),
        ("ethan", 1),
        ("zoe", 2),
    ]
    assert list(voices_by_name({"Zoe": 2, "Adam": 3})) == ["zoe", "adam"]


def test_voices_are_refused_when_their_names_differ_by_case_alone() -> None:
    with pytest.raises(
        FailedPrecondition, match=r"spk_dict\.pt: the names of two voices .* Zoe, zoe"
    ):
        voices_by_name({"Zoe": 1, "zoe": 2})
