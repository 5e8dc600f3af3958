"""What the thinker is trained on, and that it learns."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe import thinker_training
from models.recipe.dialogues import AUDIO, Dialogues, DialogueTurn
from models.recipe.model import make_configuration, make_part
from models.recipe.repertoire import HEARD
from models.recipe.thinker_training import IGNORED, ThinkerLoss, listen

EARLIER = 2


@pytest.fixture(scope="module")
def thinker(vocabulary: TinyVocabulary) -> Any:
    return make_part("thinker", make_configuration(vocabulary), 0).eval()


@pytest.fixture(scope="module")
def recordings(thinker: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    width = thinker.model.embed_tokens.weight.shape[1]
    return [torch.randn(rows, width, generator=generator) for rows in (5, 9)]


@pytest.fixture(scope="module")
def loss(thinker: Any, tokenizer: Any, recordings: list[torch.Tensor]) -> ThinkerLoss:
    return ThinkerLoss(thinker, tokenizer, recordings, 0)


def conversation(seed: int) -> list[dict[str, str]]:
    """The conversation that `ThinkerLoss` draws from a seed, as messages."""
    chance, dialogues = random.Random(seed), Dialogues()
    system = dialogues.system(chance)
    messages = [] if system is None else [{"role": "system", "content": system}]
    for _ in range(EARLIER + 1):
        turn = dialogues.turn(chance)
        messages.append({"role": "user", "content": turn.asked})
        messages.append({"role": "assistant", "content": turn.answer})
    return messages


def written_seeds(count: int) -> list[int]:
    """Seeds of conversations without recordings."""
    found = [s for s in range(40) if not any(AUDIO in m["content"] for m in conversation(s))]
    return found[:count]


@pytest.mark.parametrize("seed", written_seeds(4))
def test_conversation_has_the_chat_templates_ids(
    loss: ThinkerLoss, thinker: Any, tokenizer: Any, seed: int
) -> None:
    rows, wanted = loss.draw(random.Random(seed), EARLIER)
    text = tokenizer.apply_chat_template(conversation(seed), tokenize=False)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    torch.testing.assert_close(rows, thinker.model.embed_tokens.weight[ids], rtol=0, atol=0)
    learned = wanted != IGNORED
    assert torch.equal(wanted[learned], ids[learned])


@pytest.mark.parametrize("seed", written_seeds(4))
def test_answers_and_their_ends_are_learned_and_nothing_else(
    loss: ThinkerLoss, tokenizer: Any, seed: int
) -> None:
    _, wanted = loss.draw(random.Random(seed), EARLIER)
    answers = [m["content"] for m in conversation(seed) if m["role"] == "assistant"]
    text = tokenizer.decode(wanted[wanted != IGNORED].tolist())
    assert text == "".join(f"{answer}<|im_end|>" for answer in answers)


def test_recording_takes_the_place_of_its_pads(
    loss: ThinkerLoss, tokenizer: Any, recordings: list[torch.Tensor]
) -> None:
    heard: list[torch.Tensor] = []
    ids = loss.user(DialogueTurn(f"hello {AUDIO}", HEARD), random.Random(0), heard)
    pad = tokenizer.convert_tokens_to_ids("<|audio_pad|>")
    assert len(heard) == 1
    assert any(heard[0] is rows for rows in recordings)
    assert ids.count(pad) == len(heard[0])
    opening = tokenizer.convert_tokens_to_ids("<|audio_start|>")
    assert ids[: ids.index(opening)] == tokenizer("hello ")["input_ids"]


def test_recordings_rows_are_put_in_their_order(
    loss: ThinkerLoss, recordings: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter([DialogueTurn(AUDIO, HEARD), DialogueTurn(AUDIO, HEARD)])
    monkeypatch.setattr(loss.dialogues, "turn", lambda _: next(turns))
    monkeypatch.setattr(loss.dialogues, "system", lambda _: None)
    rows, _ = loss.draw(random.Random(0), 1)
    again = random.Random(0)
    joined = torch.cat([again.choice(recordings) for _ in range(2)])
    places = [at for at, row in enumerate(rows) if (joined == row).all(1).any()]
    torch.testing.assert_close(rows[places], joined, rtol=0, atol=0)


def test_loss_is_the_same_for_a_step_and_differs_between_steps(loss: ThinkerLoss) -> None:
    first, again, other = loss(0)[0].item(), loss(0)[0].item(), loss(1)[0].item()
    assert first == again
    assert first != other


def test_thinker_learns(
    vocabulary: TinyVocabulary, tokenizer: Any, recordings: list[torch.Tensor]
) -> None:
    thinker = make_part("thinker", make_configuration(vocabulary), 0)
    loss = ThinkerLoss(thinker, tokenizer, recordings, 0)
    parameters = [*thinker.model.parameters(), *thinker.lm_head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=2e-3)
    before = loss(0)[0].item()
    for step in range(8):
        optimiser.zero_grad()
        loss(step)[0].backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert loss(0)[0].item() < 0.85 * before


def test_tower_hears_longer_recordings_as_more_rows(
    thinker: Any, tokenizer_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinker_training, "RECORDINGS", 3)
    heard, again, other = (listen(thinker, tokenizer_directory, seed) for seed in (0, 0, 1))
    lengths = [len(rows) for rows in heard]
    assert lengths == sorted(set(lengths))
    assert all(torch.equal(one, two) for one, two in zip(heard, again, strict=True))
    assert not torch.equal(heard[0], other[0])
