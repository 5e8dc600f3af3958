from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from antiphon.errors import FailedPrecondition
from antiphon_services.text.detokenizer import Detokenizer, Vocabulary


@pytest.fixture(scope="module")
def tokenizer(other_dir: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(other_dir, local_files_only=True)


@pytest.fixture(scope="module")
def vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    return Vocabulary(tokenizer)


def _stream(vocabulary: Vocabulary, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(vocabulary)
    return [*(detokenizer.push(each) for each in ids), detokenizer.flush()]


@given(ids=st.lists(st.integers(0, 600), max_size=40))
@settings(max_examples=400)
def test_text_equals_whole_decode_when_ids_are_random(
    tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, ids: list[int]
) -> None:
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    assert "".join(_stream(vocabulary, ids)) == whole


@given(ids=st.lists(st.integers(128, 255), max_size=12))
@settings(max_examples=400)
def test_text_equals_whole_decode_when_ids_are_lone_bytes(
    tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary, ids: list[int]
) -> None:
    tokens = tokenizer.convert_ids_to_tokens(list(range(256)))
    by_byte = [tokens.index(each) for each in tokens]
    chosen = [by_byte[each] for each in ids]
    whole = tokenizer.decode(chosen, skip_special_tokens=True)
    assert "".join(_stream(vocabulary, chosen)) == whole


def test_text_splits_no_character_when_ids_are_single_bytes(
    tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary
) -> None:
    byte_ids = tokenizer.backend_tokenizer.model
    text = "a\u00e9\u4f60\U0001f600b"
    ids = [
        byte_ids.token_to_id(token)
        for character in text
        for token in Tokenizer.from_str(
            tokenizer.backend_tokenizer.to_str()
        ).pre_tokenizer.pre_tokenize_str(character)[0][0]
    ]
    assert len(ids) == len(text.encode())
    pieces = _stream(vocabulary, ids)
    assert [piece for piece in pieces if piece] == list(text)


def test_text_ends_with_replacement_when_reply_is_cut_inside_a_character(
    tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary
) -> None:
    detokenizer = Detokenizer(vocabulary)
    first_byte = next(
        id_ for id_ in range(256) if vocabulary.token_bytes(id_) == "\u4f60".encode()[:1]
    )
    assert detokenizer.push(first_byte) == ""
    assert detokenizer.inside_character
    assert detokenizer.flush() == "\ufffd"


def test_text_skips_special_ids_and_keeps_plain_added_ones(
    tokenizer: PreTrainedTokenizerBase, vocabulary: Vocabulary
) -> None:
    special, plain = tokenizer.convert_tokens_to_ids(["<tts_pad>", "<think>"])
    assert _stream(vocabulary, [special, plain, 100_000]) == ["", "<think>", "", ""]


def test_vocabulary_raises_when_decoder_is_not_byte_level() -> None:
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    words.decoder = decoders.WordPiece()
    with pytest.raises(FailedPrecondition, match="byte-level"):
        Vocabulary(PreTrainedTokenizerFast(tokenizer_object=words))
