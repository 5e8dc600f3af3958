"""A tokenizer, a lexicon of made-up sounds and the words that a test needs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon_testkit.tiny_tokenizer import TinyVocabulary
from models.recipe import codes as coding
from models.recipe.acoustics import BANDS, HOPS
from models.recipe.codes import Codebooks
from models.recipe.repertoire import spoken_words
from models.recipe.units import PAUSES, Lexicon, Unit
from models.recipe.vocabulary import write_tokenizer


@pytest.fixture(scope="session")
def tokenizer_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


@pytest.fixture(scope="session")
def vocabulary(tokenizer_directory: Path) -> TinyVocabulary:
    return write_tokenizer(tokenizer_directory)


@pytest.fixture(scope="session")
def tokenizer(tokenizer_directory: Path, vocabulary: TinyVocabulary) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_directory)


@pytest.fixture(scope="session")
def made_up_lexicon() -> Lexicon:
    """Every word and pause, with random codes: nothing is synthesised or clustered."""
    generator = np.random.default_rng(0)
    units, sounds = {}, {}
    for name in [*spoken_words(), *PAUSES]:
        frames = PAUSES[name] if name in PAUSES else int(generator.integers(2, 5))
        log_mel = generator.normal(-2, 1, (frames * HOPS, BANDS)).astype(np.float32)
        units[name] = Unit(log_mel, generator.random(frames * HOPS) < 0.7)
        sounds[name] = generator.integers(0, coding.ENTRIES, (frames, coding.BOOKS))
    features = HOPS * BANDS + HOPS
    shape = (coding.BOOKS, coding.ENTRIES, features)
    return Lexicon(units, sounds, Codebooks(generator.normal(size=shape).astype(np.float32)))
