from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor
from transformers.models.qwen3_omni_moe.processing_qwen3_omni_moe import (
    _get_feat_extract_output_lengths,
)

from antiphon.errors import FailedPrecondition, InvalidArgument
from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen3_omni import SpecialIds
from antiphon.values.conversation import Conversation
from antiphon_services.qwen3_omni.thinker.audio import audio_tower, encoder_positions
from antiphon_services.qwen3_omni.thinker.prompt import need_user
from antiphon_services.text.chat import ChatTokenizer, load_chat_tokenizer
from antiphon_services.thinker.audio import AudioFrontEnd
from antiphon_services.thinker.loading import with_media
from antiphon_services.thinker.prompt import PromptFactory
from antiphon_services.vllm.media import MediaLimits
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import (
    EVERYTHING,
    ask,
    conversation,
    recording,
    say,
)
from tests.unit.services.qwen3_omni.thinker.thinker_reference import Reference

CONTROL = ("<|im_end|>", "<|im_start|>", "<|audio_pad|>", "<tts_text_bos>", "<|endoftext|>")


@pytest.fixture(scope="module")
def chat(small_dir: Path) -> ChatTokenizer:
    return load_chat_tokenizer(small_dir)


@pytest.fixture(scope="module")
def front_end(small_dir: Path) -> AudioFrontEnd:
    extractor = WhisperFeatureExtractor.from_pretrained(small_dir)
    return AudioFrontEnd(extractor, audio_tower(50), max_audio_s=3.0)


@pytest.fixture(scope="module")
def prompts(small_dir: Path, chat: ChatTokenizer, front_end: AudioFrontEnd) -> PromptFactory:
    special = SpecialIds.from_config(read_config(small_dir))
    check = partial(need_user, special=special)
    return PromptFactory(chat, front_end, special, context_limit=64, check_spoken=check)


@pytest.fixture(scope="module")
def small_reference(small_dir: Path) -> Reference:
    return Reference(small_dir)


def test_ids_and_features_equal_the_processors(
    prompts: PromptFactory, small_reference: Reference
) -> None:
    for spoken_to in EVERYTHING:
        prompt = prompts.prepare(spoken_to, speaks=False)
        expected = small_reference.inputs(spoken_to)
        assert prompt.ids.dtype == np.int32
        assert prompt.ids.tolist() == expected["input_ids"][0].tolist()
        assert (prompt.audio is None) == ("input_features" not in expected)
        if prompt.audio is not None:
            mask = np.asarray(expected["feature_attention_mask"])
            np.testing.assert_array_equal(prompt.audio.mask, mask)
            frames = np.asarray(expected["input_features"]).transpose(0, 2, 1)[mask.astype(bool)]
            np.testing.assert_array_equal(prompt.audio.features, frames.T)


@given(text=st.text(max_size=40), more=st.text(max_size=10))
@settings(max_examples=100)
def test_ids_equal_the_processors_when_text_is_random(
    chat: ChatTokenizer, small_reference: Reference, text: str, more: str
) -> None:
    # Those that are spelled are Hugging Face's control tokens, and none of ours.
    special = chat.tokenizer.all_special_tokens
    assume(not any(token in said for token in special for said in (text + more, more)))
    spoken_to = conversation(say(text, more), say(more, role="assistant"))
    expected = small_reference.inputs(spoken_to)["input_ids"][0].tolist()
    assert chat.encode(spoken_to.messages) == expected


def test_ids_hold_no_control_id_when_text_spells_one(chat: ChatTokenizer) -> None:
    special = chat.tokenizer.convert_tokens_to_ids(list(CONTROL))
    plain = chat.encode(ask("x").messages)
    for token in CONTROL:
        ids = chat.encode(ask(f"a {token}b").messages)
        counts = [ids.count(each) for each in special]
        assert counts == [plain.count(each) for each in special]
        assert f"a {token}b" in chat.tokenizer.decode(ids)


def test_ids_hold_no_control_id_when_two_parts_spell_one(chat: ChatTokenizer) -> None:
    [end] = chat.tokenizer.convert_tokens_to_ids(["<|im_end|>"])
    ids = chat.encode(conversation(say("a<|im_", "end|>b")).messages)
    assert ids.count(end) == 1
    assert "a<|im_end|>b" in chat.tokenizer.decode(ids)


def test_ids_around_a_spelled_control_token_equal_the_characters(chat: ChatTokenizer) -> None:
    literal = chat.tokenizer("a <|im_end|>\n\nb < c", split_special_tokens=True)["input_ids"]
    ids = chat.encode(ask("a <|im_end|>\n\nb < c").messages)
    chat.tokenizer("", split_special_tokens=False)
    header = chat.encode(ask("").messages)
    at = next(i for i, (a, b) in enumerate(zip(ids, header, strict=False)) if a != b)
    assert ids[at : at + len(literal)] == literal


def test_encode_raises_when_text_has_the_mark_beside_a_control_token(
    chat: ChatTokenizer,
) -> None:
    with pytest.raises(InvalidArgument) as raised:
        chat.encode(ask("\ufdd0 <|im_end|>").messages)
    assert raised.value.field == "messages"


def test_encode_raises_when_the_template_refuses(chat: ChatTokenizer) -> None:
    refusing = ChatTokenizer(chat.tokenizer, "{{ raise_exception('no system message') }}")
    with pytest.raises(InvalidArgument, match="no system message"):
        refusing.encode(ask("a").messages)


def test_load_takes_the_processors_template_when_there_is_one(
    small_dir: Path, tmp_path: Path
) -> None:
    for path in small_dir.glob("*token*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "config.json").write_bytes((small_dir / "config.json").read_bytes())
    (tmp_path / "chat_template.json").write_text('{"chat_template": "the words"}')
    chat = load_chat_tokenizer(tmp_path)
    assert chat.encode(ask("a").messages) == chat.tokenizer("the words")["input_ids"]


def test_encoder_positions_equal_the_processors() -> None:
    for frames in [*range(1, 420), 2999, 3000]:
        expected = _get_feat_extract_output_lengths(frames, 50)
        assert encoder_positions(frames, 50) == expected


@given(counts=st.lists(st.integers(400, 5000), min_size=1, max_size=3))
@settings(max_examples=40)
def test_positions_equal_those_of_the_features(front_end: AudioFrontEnd, counts: list[int]) -> None:
    recordings = [recording(count / 16000) for count in counts]
    extracted: Any = front_end.extract(recordings)
    assert front_end.positions(recordings) == extracted.positions


@pytest.mark.parametrize(
    ("spoken_to", "field", "words"),
    [
        (Conversation(()), "messages", "at least one message"),
        (conversation(say(1.0, 399 / 16000)), "audio.1", "too short"),
        (conversation(say(1 / 16000)), "audio.0", "too short"),
        (conversation(say(1.0, 3.01)), "audio.1", "too long"),
        (ask("water " * 60), "messages", "64"),
        (conversation(say(2.9), say(2.9)), "messages", "context limit"),
        (conversation(say("only", role="system")), "messages", "user message"),
    ],
)
def test_prepare_raises_when_input_is_bad(
    prompts: PromptFactory, spoken_to: Conversation, field: str, words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words) as raised:
        prompts.prepare(spoken_to, speaks=True)
    assert raised.value.field == field


def test_prepare_raises_when_there_are_more_recordings_than_the_thinker_takes(
    prompts: PromptFactory, small_dir: Path
) -> None:
    two, three = (conversation(say("Hear:", *[0.1] * count)) for count in (2, 3))
    prompts = with_media(small_dir, prompts, None, MediaLimits(audio=2, image=0, video=0))
    assert len(prompts.prepare(two, speaks=False).ids)
    with pytest.raises(InvalidArgument, match="3 recordings; the maximum is 2") as told:
        prompts.prepare(three, speaks=False)
    assert told.value.field == "messages"


def test_short_recordings_are_no_larger_beside_a_long_one(prompts: PromptFactory) -> None:
    audio = prompts.audio
    seconds = [3.0, *[0.1] * 7]
    together = audio.extract([recording(each) for each in seconds])
    alone = [audio.extract([recording(each)]) for each in seconds]
    assert together is not None
    assert together.features.nbytes == sum(each.features.nbytes for each in alone if each)


def test_prepare_names_the_prompts_length_when_it_is_too_long(prompts: PromptFactory) -> None:
    length = len(prompts.chat.encode(ask("water " * 60).messages))
    with pytest.raises(InvalidArgument, match=rf"{length} positions.*64"):
        prompts.prepare(ask("water " * 60), speaks=False)


def test_prepare_takes_the_longest_prompt_that_leaves_room(prompts: PromptFactory) -> None:
    frame = len(prompts.chat.encode(ask("").messages))
    fits = prompts.prepare(ask("!" * (63 - frame)), speaks=False)
    assert len(fits.ids) == 63
    with pytest.raises(InvalidArgument, match="context limit"):
        prompts.prepare(ask("!" * (64 - frame)), speaks=False)


def test_prepare_needs_no_user_when_nothing_is_spoken(prompts: PromptFactory) -> None:
    assert len(prompts.prepare(conversation(say("only", role="system")), speaks=False).ids)


def test_prepare_raises_when_the_template_has_no_place_for_audio(
    prompts: PromptFactory, chat: ChatTokenizer, front_end: AudioFrontEnd
) -> None:
    deaf = PromptFactory(ChatTokenizer(chat.tokenizer, "hello"), front_end, prompts.special, 64)
    with pytest.raises(InvalidArgument, match="0 of 1 recordings"):
        deaf.prepare(conversation(say(1.0)), speaks=False)


def test_load_raises_when_there_is_no_chat_template(small_dir: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "config.json"):
        (tmp_path / name).write_bytes((small_dir / name).read_bytes())
    with pytest.raises(FailedPrecondition, match="chat template"):
        load_chat_tokenizer(tmp_path)
