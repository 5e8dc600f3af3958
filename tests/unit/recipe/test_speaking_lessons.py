"""What the thinker is taught beside typed questions: recordings and functions."""

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.deployment.schema import GatewayConfig
from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe import lessons
from models.recipe.functions import (
    CITIES,
    FUNCTIONS,
    GET_TIME,
    NO_CLOCK,
    ROOMS,
    SET_LIGHT,
    draw_call,
    function_requests,
)
from models.recipe.lessons import (
    ASIDES,
    IGNORED,
    HeardRows,
    LessonsLoss,
    Written,
    listen_to,
    write_call,
)
from models.recipe.model import make_configuration, make_part
from models.recipe.recordings import LEAD, TAIL, MelRecording
from models.recipe.repertoire import (
    NOT_UNDERSTOOD,
    UNKNOWN,
    UNSPOKEN,
    load_repertoire,
    spoken_words,
)
from models.recipe.tower_training import collapse, rows_of
from models.recipe.transcripts import INSTRUCTIONS
from models.recipe.units import names_of


@pytest.fixture(scope="module")
def thinker(vocabulary: TinyVocabulary) -> Any:
    return make_part("thinker", make_configuration(vocabulary), 0).eval()


@pytest.fixture(scope="module")
def recorded(thinker: Any) -> HeardRows:
    """What a tower wrote: noise, two questions and one that nobody knows."""
    generator = torch.Generator().manual_seed(1)
    width = thinker.model.embed_tokens.weight.shape[1]
    texts = ("", "what is antiphon", "who are you", "please who are you", "where is my elephant")
    return {text: [torch.randn(9, width, generator=generator)] for text in texts}


@pytest.fixture(scope="module")
def loss(thinker: Any, tokenizer: Any, recorded: HeardRows) -> LessonsLoss:
    return LessonsLoss(thinker, tokenizer, recorded, 0)


def learned(written: Written, tokenizer: Any) -> list[str]:
    """The assistant's messages that are learned."""
    text = tokenizer.decode([index for index in written.wanted if index != IGNORED])
    return list(text.split("<|im_end|>")[:-1])


def messages_of(text: str) -> list[dict[str, Any]]:
    """A rendered conversation's messages, as a client would send them."""
    found: list[dict[str, Any]] = []
    for turn in text.split("<|im_start|>")[1:]:
        role, content = turn.removesuffix("<|im_end|>\n").split("\n", 1)
        if role == "system":
            content = content.split("# Tools")[0].rstrip("\n")
            if content:
                found.append({"role": role, "content": content})
        elif content.startswith("<tool_response>"):
            inner = content.split("\n", 1)[1].removesuffix("\n</tool_response>")
            found.append({"role": "tool", "content": inner})
        elif content.startswith("<tool_call>"):
            call = json.loads(content.split("\n")[1])
            found.append({"role": role, "content": "", "tool_calls": [{"function": call}]})
        else:
            found.append({"role": role, "content": content})
    return found


@pytest.mark.parametrize("seed", range(8))
def test_conversation_with_functions_has_the_chat_templates_ids(
    loss: LessonsLoss, tokenizer: Any, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = loss.ask

    def typed(written: Written, question: str, chance: random.Random, **_: Any) -> None:
        ask(written, question, chance, typed=1.0)

    monkeypatch.setattr(loss, "ask", typed)
    opening, draw = loss.begin("functions", random.Random(seed))
    ids = opening + draw(random.Random(seed), 2).ids
    text = tokenizer.decode(ids)
    tools = [each for each in FUNCTIONS if json.dumps(each) in text]
    tools.sort(key=lambda each: text.index(json.dumps(each)))
    assert tools
    rendered = tokenizer.apply_chat_template(messages_of(text), tools=tools, tokenize=False)
    assert rendered == text
    assert tokenizer(rendered)["input_ids"] == ids


def drawn(loss: LessonsLoss, kind: str, seed: int, turns: int) -> Written:
    """A conversation of a step of this kind, behind what all of them begin with."""
    chance = random.Random(seed)
    _, draw = loss.begin(kind, chance)
    return draw(chance, turns)


def test_opening_is_read_once_and_counts_as_if_it_stood_before_each(loss: LessonsLoss) -> None:
    opening, draw = loss.begin("functions", random.Random(3))
    told = [draw(random.Random(seed), 1).ids for seed in (1, 2)]
    length = min(map(len, told))
    rows = loss.table[torch.tensor([ids[:length] for ids in told])]
    before = loss.table[torch.tensor(opening)].expand(2, -1, -1)
    whole = loss.read([], torch.cat([before, rows], 1))[:, len(opening) :]
    once = loss.read(opening, rows)
    torch.testing.assert_close(once, whole, rtol=1e-4, atol=1e-4)
    learned_by = loss.thinker.model.layers[0].self_attn.v_proj.weight
    (wanted,) = torch.autograd.grad(whole[:, -1].sum(), learned_by)
    (found,) = torch.autograd.grad(once[:, -1].sum(), learned_by)
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)


def test_call_is_learned_and_then_what_came_of_it(loss: LessonsLoss, tokenizer: Any) -> None:
    calls = 0
    for seed in range(12):
        answers = learned(drawn(loss, "functions", seed, 2), tokenizer)
        for call, spoken in itertools.pairwise(answers):
            if call.startswith("<tool_call>"):
                calls += 1
                named = json.loads(call.split("\n")[1])
                assert named["name"] in ("get_time", "set_light")
                assert spoken.startswith(("It is ", "The light in the "))
    assert calls > 5


@pytest.mark.parametrize("seed", range(6))
def test_recordings_rows_are_words_among_placeholders(
    loss: LessonsLoss, tokenizer: Any, seed: int
) -> None:
    ids = loss.hear("what is what is antiphon", random.Random(seed), misheard=0.0)
    classes = [loss.words.classes[index] for index in ids]
    written = tokenizer.decode([loss.words.ids[at] for at in collapse(classes)])
    assert written == " what is what is antiphon"


def test_what_is_heard_is_blurred_and_the_rest_is_not(loss: LessonsLoss, thinker: Any) -> None:
    conversations = (drawn(loss, "heard", seed, 2) for seed in range(20))
    written = next(each for each in conversations if each.heard)
    rows = loss.rows(written, random.Random(0), torch.Generator().manual_seed(0))
    exact = (rows == thinker.model.embed_tokens.weight[torch.tensor(written.ids)]).all(1)
    places = {at for begin, end, _ in written.heard for at in range(begin, end)}
    assert {at for at, same in enumerate(exact.tolist()) if not same} == places


def test_rows_of_the_tower_take_the_placeholders_places(
    loss: LessonsLoss, tokenizer: Any, recorded: HeardRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "RECORDED", 1.0)
    written = Written()
    loss.ask(written, "who are you", random.Random(0), typed=0.0)
    ((begin, end, rows),) = written.heard
    assert rows is recorded["who are you"][0]
    pad = tokenizer.convert_tokens_to_ids("<|audio_pad|>")
    assert [at for at, index in enumerate(written.ids) if index == pad] == [*range(begin, end)]
    found = loss.rows(written, random.Random(0), torch.Generator())
    torch.testing.assert_close(found[begin:end], rows, rtol=0, atol=0)


def test_recorded_question_that_nobody_knows_is_found(loss: LessonsLoss) -> None:
    assert loss.strange == ["where is my elephant"]


def test_transcript_has_the_words_and_the_gateway_asks_for_it(
    loss: LessonsLoss, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "MISHEARD", 0.0)
    monkeypatch.setattr(lessons, "RECORDED", 0.0)
    heard, asked = set(), set()
    for seed in range(200):
        written = drawn(loss, "transcribed", seed, 1)
        ((begin, end, _),) = written.heard
        classes = [loss.words.classes[index] for index in written.ids[begin:end]]
        words = [loss.words.ids[at] for at in collapse(classes)]
        unknown = loss.words.ids[loss.words.unknown]
        spoken = tokenizer.decode([each for each in words if each != unknown]).split()
        (transcript,) = learned(written, tokenizer)
        plain = transcript.lower().replace("...", " ").rstrip(".?").split()
        assert plain == spoken
        assert unknown not in words or "..." in transcript
        instruction, _ = tokenizer.decode(written.ids[end + 1 :]).split("<|im_end|>", 1)
        asked.add(instruction.split("\n")[0])
        heard.add(transcript)
    assert "" in heard
    assert len(heard) > 100
    assert asked == {GatewayConfig().media.transcribe_instruction, *INSTRUCTIONS}


def test_recording_with_an_aside_is_answered(loss: LessonsLoss, tokenizer: Any) -> None:
    conversations = [drawn(loss, "heard", seed, 1) for seed in range(200)]
    texts = [tokenizer.decode(each.ids) for each in conversations]
    with_aside = [
        each
        for each, text in zip(conversations, texts, strict=True)
        if any(f"<|audio_end|>{aside}<|im_end|>" in text for aside in ASIDES)
    ]
    answers = {*loss.answers.values(), NOT_UNDERSTOOD, UNKNOWN, NO_CLOCK}
    assert with_aside
    assert all(learned(each, tokenizer)[0] in answers for each in with_aside)


def test_kinds_of_lessons_have_losses_that_follow_from_the_step(loss: LessonsLoss) -> None:
    for step in (0, 1, 2):
        first, again = loss(step)[0].item(), loss(step)[0].item()
        assert first == again
        assert 0 < first < 20


def test_everything_that_is_answered_can_be_said() -> None:
    words = set(spoken_words())
    texts = [NOT_UNDERSTOOD, *(draw_call(random.Random(seed)).answer for seed in range(60))]
    for text in texts:
        assert set(names_of(text)) - {" "} <= words | set(".,:?!0123456789")


def test_requests_name_what_the_functions_take() -> None:
    requests = function_requests()
    assert len(set(requests)) == len(requests)
    asked = {q for e in load_repertoire() for q in e.questions}
    assert not asked & set(requests)
    assert all(any(city in text for text in requests) for city in CITIES)
    assert all(any(room in text for text in requests) for room in ROOMS)


def test_call_is_written_as_json() -> None:
    text = write_call("set_light", {"room": "hall", "state": "on"})
    opening, body, closing = text.split("\n")
    assert (opening, closing) == ("<tool_call>", "</tool_call>")
    assert json.loads(body) == {"name": "set_light", "arguments": {"room": "hall", "state": "on"}}
    names = [each["function"]["name"] for each in (GET_TIME, SET_LIGHT)]
    assert names == ["get_time", "set_light"]


def test_tower_is_listened_to_for_every_text_and_for_noise(
    vocabulary: TinyVocabulary, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lessons, "NOISES", 2)
    monkeypatch.setattr(lessons, "TOGETHER", 3)
    tower = make_part("tower", make_configuration(vocabulary), 0).eval()
    power = np.random.default_rng(0).normal(-2, 1, (128, 90)).astype(np.float16)
    texts = ["who are you", "hello", "who are you", "hi"]
    heard = listen_to(tower, [MelRecording(text, power) for text in texts], 0)
    assert {text: len(rows) for text, rows in heard.items()} == {
        "who are you": 2,
        "hello": 1,
        "hi": 1,
        "": 2,
    }
    shortest = rows_of(90 + LEAD[0] + TAIL[0])
    assert all(len(rows) >= shortest for rows in heard["who are you"])
    assert not any(rows.requires_grad for each in heard.values() for rows in each)


def test_commands_to_repeat_are_lessons_of_their_own(loss: LessonsLoss, tokenizer: Any) -> None:
    for seed in range(12):
        written = drawn(loss, "repeated", seed, 2)
        assert not written.heard
        answers = learned(written, tokenizer)
        turns = messages_of(tokenizer.decode(written.ids))
        asked = [each["content"].lower() for each in turns if each["role"] == "user"]
        for question, answer in zip(asked, answers, strict=True):
            assert answer == UNSPOKEN or answer[:-1].lower() in question
