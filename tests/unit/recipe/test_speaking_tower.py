"""What the audio tower is taught to write, and that it learns."""

from typing import Any

import numpy as np
import pytest
import torch

from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe import tower_training
from models.recipe.model import SHAPE, make_configuration, make_part
from models.recipe.recordings import MelRecording
from models.recipe.tower_training import (
    BLANK,
    HeardWords,
    TowerLoss,
    collapse,
    hear,
    initialise,
    rows_of,
    spread,
)
from models.recipe.vocabulary import embed

TEXTS = ("what is antiphon", "what is code2wav", "hello there", "turn on the light in the hall")


@pytest.fixture(scope="module")
def table(vocabulary: TinyVocabulary) -> torch.Tensor:
    rows = make_configuration(vocabulary).thinker_config.text_config.vocab_size
    return embed(vocabulary, rows, SHAPE.hidden, 0)


@pytest.fixture(scope="module")
def words(tokenizer: Any, table: torch.Tensor) -> HeardWords:
    return HeardWords.of(tokenizer, table)


@pytest.fixture(scope="module")
def recordings() -> list[MelRecording]:
    """Something of its own for each text."""
    found = []
    for at, text in enumerate(TEXTS * 6):
        generator = np.random.default_rng(at % len(TEXTS))
        power = generator.normal(-2, 1.5, (128, 60 + 30 * (at % len(TEXTS))))
        found.append(MelRecording(text, power.astype(np.float16)))
    return found


def make_tower(vocabulary: TinyVocabulary) -> Any:
    tower = make_part("tower", make_configuration(vocabulary), 0)
    initialise(tower, 0)
    return tower


@pytest.mark.parametrize("text", TEXTS)
def test_known_words_are_written_as_their_tokens_within_a_sentence(
    words: HeardWords, tokenizer: Any, text: str
) -> None:
    ids = [words.ids[at] for at in words.encode(tokenizer, text)]
    assert tokenizer.decode(ids) == f" {text}"
    assert BLANK not in words.encode(tokenizer, text)


def test_word_of_no_question_is_written_as_unknown(words: HeardWords, tokenizer: Any) -> None:
    classes = words.encode(tokenizer, "what is elephantine")
    assert len(classes) == 3
    assert classes[2] == words.unknown
    assert tokenizer.convert_ids_to_tokens(words.ids[words.unknown]) is None


@pytest.mark.parametrize("frames", [1, 7, 8, 9, 99, 100, 101, 175, 200, 263, 901])
def test_rows_are_counted_as_the_model_counts_them(frames: int) -> None:
    from transformers.models.qwen3_omni_moe import modeling_qwen3_omni_moe as modeling

    assert rows_of(frames) == int(modeling._get_feat_extract_output_lengths(torch.tensor(frames)))


def test_recordings_heard_together_are_heard_as_alone(vocabulary: TinyVocabulary) -> None:
    tower = make_tower(vocabulary).eval()
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(128, frames, generator=generator) for frames in (130, 250, 101)]
    together = hear(tower, features)
    for rows, each in zip(together, features, strict=True):
        assert len(rows) == rows_of(each.shape[1])
        torch.testing.assert_close(rows, hear(tower, [each])[0], rtol=0, atol=2e-2)


def test_sound_reaches_the_rows_before_training(vocabulary: TinyVocabulary) -> None:
    """With the weights of transformers, rows hardly differ between recordings."""
    generator = torch.Generator().manual_seed(0)
    features = [torch.randn(128, 100, generator=generator) for _ in range(2)]
    plain = make_part("tower", make_configuration(vocabulary), 0)
    differences = []
    for tower in (plain, make_tower(vocabulary)):
        one, two = hear(tower.eval(), features)
        differences.append(((one - two).norm() / one.norm()).item())
    assert differences[0] < 0.01
    assert differences[1] > 0.1


def test_repetitions_and_placeholders_are_not_written() -> None:
    assert collapse([0, 0, 3, 3, 0, 3, 5, 0, 0]) == [3, 3, 5]
    assert collapse([]) == []


def test_guide_gives_long_words_more_rows() -> None:
    rows = spread([1, 2], [0, 2, 6], 50, 100)
    assert rows[: rows_of(50)] == [BLANK] * rows_of(50)
    said = rows[rows_of(50) :]
    assert said == sorted(said)
    assert set(said) == {1, 2}
    assert said.count(2) > 2 * said.count(1)
    assert BLANK not in said
    assert set(spread([], [0], 10, 200)) == {BLANK}


def test_row_is_nearest_to_its_own_word(
    vocabulary: TinyVocabulary, tokenizer: Any, table: torch.Tensor, recordings: list[MelRecording]
) -> None:
    loss = TowerLoss(make_tower(vocabulary), recordings, tokenizer, table, 0)
    nearest = loss.nearness(loss.words.rows).argmax(-1)
    assert torch.equal(nearest, torch.arange(len(loss.words.ids)))


def test_tower_learns(
    vocabulary: TinyVocabulary,
    tokenizer: Any,
    table: torch.Tensor,
    recordings: list[MelRecording],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tower_training, "BATCH", 8)
    tower = make_tower(vocabulary)
    loss = TowerLoss(tower, recordings, tokenizer, table, 0)
    optimiser = torch.optim.AdamW(tower.parameters(), lr=2e-3)
    before = loss(0)[1]["ctc"]
    for step in range(12):
        optimiser.zero_grad()
        loss(step)[0].backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert loss(0)[1]["ctc"] < 0.5 * before


def test_loss_is_the_same_for_a_step_and_differs_between_steps(
    vocabulary: TinyVocabulary, tokenizer: Any, table: torch.Tensor, recordings: list[MelRecording],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(tower_training, "BATCH", 4)
    loss = TowerLoss(make_tower(vocabulary), recordings, tokenizer, table, 0)
    first, again, other = (loss(step)[0].item() for step in (0, 0, 1))
    assert first == again
    assert first != other
