"""The ear: word errors, and what it needs."""

import builtins
import importlib.util
from typing import Any

import pytest

from antiphon.errors import FailedPrecondition
from models.recipe.recogniser import Recogniser, normalise, word_errors

INSTALLED = importlib.util.find_spec("pocketsphinx") is not None


@pytest.mark.parametrize(
    ("said", "heard", "errors"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a x c", 1),
        ("a b c", "b c", 1),
        ("a b", "a b c d", 2),
        ("a b", "", 2),
    ],
)
def test_word_errors_counts_edits(said: str, heard: str, errors: int) -> None:
    assert word_errors(said.split(), heard.split()) == errors


def test_normalise_writes_digits_as_words() -> None:
    assert normalise("What is 2, code2wav?") == ["what", "is", "two", "code2wav"]


def test_recogniser_says_what_is_missing_when_pocketsphinx_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = builtins.__import__

    def refuse(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pocketsphinx":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(FailedPrecondition, match="pocketsphinx"):
        Recogniser(["hello"])


@pytest.mark.skipif(not INSTALLED, reason="pocketsphinx is not installed")
def test_recogniser_lists_words_that_no_dictionary_has() -> None:
    assert Recogniser(["hello antiphon zzxqy"]).unknown == ["zzxqy"]
