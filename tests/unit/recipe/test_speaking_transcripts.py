"""What the checkpoint is to write down of a recording."""

import random
import re

import pytest

from antiphon.deployment.schema import GatewayConfig
from models.recipe.functions import function_requests
from models.recipe.recordings import spoken_questions
from models.recipe.transcripts import INSTRUCTION, draw_instruction, write_down


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("what is the capital of france", "What is the capital of France?"),
        ("how many days are in may", "How many days are in May?"),
        ("may i use it", "May I use it?"),
        ("please may i use it", "Please may I use it?"),
        ("i am sad", "I am sad."),
        ("hello what is code2wav", "Hello what is code2wav?"),
        ("turn off the light in the hall", "Turn off the light in the hall."),
        ("tell me the time in paris", "Tell me the time in Paris."),
        ("so", "So."),
        ("", ""),
    ],
)
def test_words_are_written_as_a_sentence(words: str, written: str) -> None:
    assert write_down(words) == written


@pytest.mark.parametrize(
    ("words", "written"),
    [
        ("where is the big zebulon of rome", "Where is the... of Rome?"),
        ("tell me the zebulon", "Tell me the..."),
        ("zebulon", "..."),
    ],
)
def test_words_that_are_not_recognised_leave_one_gap(words: str, written: str) -> None:
    assert write_down(words, {"zebulon", "big"}) == written


def test_no_word_of_the_repertoire_is_lost() -> None:
    for words in (*spoken_questions(), *function_requests()):
        written = write_down(words)
        assert re.sub("[.?]$", "", written).lower() == words
        assert written[0].isupper()


def test_instruction_is_mostly_the_gateways() -> None:
    drawn = [draw_instruction(random.Random(seed)) for seed in range(300)]
    assert GatewayConfig().media.transcribe_instruction == INSTRUCTION
    assert drawn.count(INSTRUCTION) > 150
    assert any(each.startswith(f"{INSTRUCTION}\nThe language is en.") for each in drawn)
    assert any("\nWhat is known of it: " in each for each in drawn)
