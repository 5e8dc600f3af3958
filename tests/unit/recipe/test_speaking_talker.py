"""What the talker is trained on, that it learns, and what it says by itself."""

import random
from typing import Any

import pytest
import torch

from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe.assemble import SETTINGS
from models.recipe.circuits import wire_pointer
from models.recipe.codes import (
    BOOKS,
    CLOCK_GROUP,
    COUNTDOWNS,
    ENTRIES,
    PITCH_GROUP,
    TOKEN_GROUP,
    VOICES,
)
from models.recipe.model import SHAPE, make_configuration, make_part
from models.recipe.rehearsal import Rehearsal, rehearse
from models.recipe.requests import Request, repeat_requests
from models.recipe.talker_training import (
    ASSISTANT_ROWS,
    IGNORED,
    LONG,
    REPETITION_PENALTY,
    SHORT,
    Script,
    Speech,
    TalkerLoss,
    _corrupt,
    _penalise,
)
from models.recipe.units import Lexicon, names_of
from models.recipe.vocabulary import embed, meanings

TEXTS = ["The red fox.", "Water!"]


@pytest.fixture(scope="module")
def script(tokenizer: Any, vocabulary: TinyVocabulary, made_up_lexicon: Lexicon) -> Script:
    return Script(made_up_lexicon, tokenizer, meanings(vocabulary), TEXTS)


@pytest.fixture
def loss(script: Script, vocabulary: TinyVocabulary) -> TalkerLoss:
    config = make_configuration(vocabulary)
    talker = make_part("talker", config, 0)
    wire_pointer(talker, 0)
    rows = config.thinker_config.text_config.vocab_size
    return TalkerLoss(config, talker, embed(vocabulary, rows, SHAPE.hidden, 0), script, 0)


def turns_of(user: list[int], opening: list[int]) -> int:
    """How many turns begin in a user part's ids."""
    return sum(user[at : at + len(opening)] == opening for at in range(len(user)))


@pytest.mark.parametrize("longest", [SHORT, LONG])
def test_script_draws_user_turns_as_the_chat_template_has_them(
    script: Script, tokenizer: Any, longest: int
) -> None:
    chance = random.Random(0)
    opening = tokenizer("<|im_start|>user\n")["input_ids"]
    closing = tokenizer("<|im_end|>\n")["input_ids"]
    speeches = [script.draw(chance, longest) for _ in range(60)]
    for speech in speeches:
        assert speech.user[: len(opening)] == opening
        assert speech.user[-len(closing) :] == closing
    assert {speech.voice for speech in speeches} == set(range(len(VOICES)))
    assert max(turns_of(speech.user, opening) for speech in speeches) > 1


def test_script_answers_a_question_with_the_codes_of_its_words(
    script: Script, tokenizer: Any, made_up_lexicon: Lexicon
) -> None:
    text = "The red fox, twenty 4."
    speech = script.answer(Request("What is it?", text, "treble"))
    template = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is it?"}], tokenize=False
    )
    assert tokenizer.decode(speech.user) == template
    assert tokenizer.decode(speech.reply) == text
    names = [*names_of("The red fox, twenty"), " ", "four", "."]
    assert torch.equal(speech.codes, torch.from_numpy(made_up_lexicon.encode(names, 1)))


def test_script_draws_the_same_from_the_same_seed(script: Script) -> None:
    one, two = (script.draw(random.Random("0 7"), SHORT) for _ in range(2))
    assert (one.user, one.reply, one.voice) == (two.user, two.reply, two.voice)
    assert torch.equal(one.codes, two.codes)


def test_text_rows_are_the_prompt_then_a_token_for_each_frame(loss: TalkerLoss) -> None:
    speech = loss.script.answer(Request("Who?", "The red fox.", "cantor"))
    frames = 12
    rows = loss.text_rows(speech, frames)
    config, words = loss.config, loss.words
    tail = [*speech.reply, config.tts_eos_token_id]
    tail += [config.tts_pad_token_id] * (frames + 1 - len(tail))
    wanted = loss.talker.text_projection(words[torch.tensor(tail)])
    assert len(rows) == len(speech.user) + ASSISTANT_ROWS + frames
    torch.testing.assert_close(rows[len(speech.user) + ASSISTANT_ROWS - 1 :], wanted)


def test_corruption_leaves_the_place_in_the_text(script: Script) -> None:
    codes = script.codes(script.draw(random.Random(1), LONG).reply, 1).repeat(8, 1)
    changed = _corrupt(codes, torch.Generator().manual_seed(0))
    assert torch.equal(changed[:, [TOKEN_GROUP, CLOCK_GROUP]], codes[:, [TOKEN_GROUP, CLOCK_GROUP]])
    assert torch.equal(changed[:, PITCH_GROUP] % COUNTDOWNS, codes[:, PITCH_GROUP] % COUNTDOWNS)
    pitched = (changed[:, PITCH_GROUP] != codes[:, PITCH_GROUP]).float().mean()
    sounding = (changed[:, :BOOKS] != codes[:, :BOOKS]).any(1).float().mean()
    assert 0.05 < pitched < 0.3
    assert 0.05 < sounding < 0.3
    voices = changed[:, PITCH_GROUP] // COUNTDOWNS // 4
    assert set(voices.tolist()) == set(range(len(VOICES)))


def test_penalty_lowers_what_was_said_before_and_nothing_else() -> None:
    logits = torch.tensor([[[1.0, -1.0, 2.0, -2.0]] * 4])
    lowered = _penalise(logits, torch.tensor([[IGNORED, 1, 2, 1]]))
    said: list[set[int]] = [set(), set(), {1}, {1, 2}]
    for at, before in enumerate(said):
        for index in range(4):
            value = float(logits[0, at, index])
            factor = 1 / REPETITION_PENALTY if value > 0 else REPETITION_PENALTY
            wanted = value * factor if index in before else value
            assert float(lowered[0, at, index]) == pytest.approx(wanted)


def test_loss_is_the_same_for_a_step_and_differs_between_steps(loss: TalkerLoss) -> None:
    first, again, other = loss(0)[0].item(), loss(0)[0].item(), loss(1)[0].item()
    assert first == again
    assert first != other


def test_talker_learns(loss: TalkerLoss) -> None:
    optimiser = torch.optim.AdamW(loss.talker.parameters(), lr=2e-3)
    before = loss(0)[0].item()
    for step in range(12):
        optimiser.zero_grad()
        loss(step)[0].backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert loss(0)[0].item() < 0.85 * before


@torch.no_grad()
def test_talker_by_itself_says_what_it_would_choose_after_its_own_words(
    loss: TalkerLoss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cached steps of replies side by side are one forward over the frames so made."""
    requests = [Request("Who?", "The red fox.", "cantor"), *repeat_requests(2, seed=3)]
    talker = loss.talker.eval()
    rehearsal = rehearse(talker, loss, [loss.script.answer(request) for request in requests])
    monkeypatch.setattr("models.recipe.talker_training._corrupt", lambda codes, _: codes)
    penalty = SETTINGS["talker_repetition_penalty"]
    for speech, codes in zip(rehearsal.speeches, rehearsal.spoken, strict=True):
        said = Speech(speech.user, speech.reply, speech.voice, codes)
        rows = loss.rows(said, torch.Generator())
        hidden = talker.model(inputs_embeds=rows[None], use_cache=False).last_hidden_state[0]
        logits = talker.codec_head(hidden[len(speech.user) + ASSISTANT_ROWS - 1 : -1])
        logits[:, ENTRIES:] = -torch.inf
        for at in range(len(codes)):
            seen = codes[:at, 0].unique()
            values = logits[at, seen]
            logits[at, seen] = torch.where(values > 0, values / penalty, values * penalty)
        assert len(codes) > 2
        assert torch.equal(logits.argmax(-1), codes[:, 0])


def test_rehearsal_counts_replies_that_are_exact_and_end_in_time(script: Script) -> None:
    speeches = [script.answer(Request("Who?", text, "cantor")) for text in TEXTS * 2]
    speeches.append(script.answer(Request("Who?", TEXTS[0], "treble")))
    spoken = [speech.codes.clone() for speech in speeches]
    spoken[1][0, CLOCK_GROUP] += 1
    spoken[2] = spoken[2][:-1]
    rehearsal = Rehearsal(speeches, spoken)
    assert rehearsal.exact(0) == (2, 4)
    assert rehearsal.describe() == "cantor 2 of 4, treble 1 of 1"
