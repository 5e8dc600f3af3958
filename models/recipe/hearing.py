"""Evaluates how well a checkpoint understands spoken questions, and whether it calls functions.

All requests are sent through the services.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

import antiphon
from models.recipe.acoustics import Floats
from models.recipe.asking import Services, wav
from models.recipe.espeak import Manner, speak_as
from models.recipe.functions import FUNCTIONS, RequestedCall, every_call
from models.recipe.recogniser import normalise, word_errors
from models.recipe.recordings import (
    HEARING_RATE,
    PITCHES,
    SPEEDS,
    UNHEARD_MANNERS,
    draw_manner,
    spoken_questions,
    trim,
)
from models.recipe.repertoire import load_repertoire
from models.recipe.transcripts import INSTRUCTION, write_down

SNR_DB = (20.0, 30.0)
# The silence around speech that a voice activity detector leaves, in seconds.
LEAD_S, TAIL_S = (0.05, 0.4), (0.1, 0.6)


@dataclass(frozen=True, slots=True)
class SpokenQuestion:
    """A question, the way it is spoken, the expected answer, and its audio at 16 kHz."""

    asked: str
    manner: Manner
    expected: str
    samples: Floats


@dataclass(frozen=True, slots=True)
class Understood:
    """The number of spoken questions that were answered as expected, and the questions that were
    not.
    """

    title: str
    asked: int
    misunderstood: Sequence[tuple[SpokenQuestion, str]]


@dataclass(frozen=True, slots=True)
class Transcribed:
    """Results of transcribing spoken questions.

    They include the number of exact transcripts, the word error rate, and the transcripts that
    differ.
    """

    title: str
    asked: int
    exact: int
    word_error_rate: float
    wrong: Sequence[tuple[SpokenQuestion, str]]


@dataclass(frozen=True, slots=True)
class Called:
    """How many typed and spoken requests led to the correct call, and how many results were
    answered.
    """

    asked: int
    typed: int
    spoken: int
    answered: int


def speak_questions(every: int, seed: int, *, unheard: bool) -> list[SpokenQuestion]:
    """Return every Nth question of the repertoire, in voices that were or were not used in
    training.
    """
    answers = {q: e.answer for e in load_repertoire() for q in e.questions}
    found = []
    for at, question in enumerate(spoken_questions()[::every]):
        chance = random.Random(f"judge {seed} {at} {unheard}")
        manner = draw_manner(chance)
        if unheard:
            voice = UNHEARD_MANNERS[at % len(UNHEARD_MANNERS)]
            manner = Manner(voice, chance.randint(*SPEEDS), chance.randint(*PITCHES))
        samples = surround(speak_as(question, manner, HEARING_RATE), chance)
        found.append(SpokenQuestion(question, manner, answers[question], samples))
    return found


def surround(samples: Floats, chance: random.Random) -> Floats:
    """Add silence before and after the speech, and noise to all of it."""
    spoken = trim(samples)
    before, after = (int(chance.uniform(*span) * HEARING_RATE) for span in (LEAD_S, TAIL_S))
    level = float(np.sqrt(np.mean(spoken**2))) * 10 ** (-chance.uniform(*SNR_DB) / 20)
    placed = np.pad(spoken, (before, after))
    noise = np.random.default_rng(chance.randrange(2**32)).normal(0, level, len(placed))
    return (placed + noise).astype(np.float32).clip(-1, 1)


async def judge_hearing(
    services: Services, title: str, questions: Sequence[SpokenQuestion]
) -> Understood:
    """Ask the questions as audio, and compare the text of the answers."""
    texts = await services.hear_all([each.samples for each in questions], title)
    pairs = zip(questions, texts, strict=True)
    wrong = [(question, text) for question, text in pairs if text != question.expected]
    return Understood(title, len(questions), wrong)


async def judge_transcripts(
    services: Services, title: str, questions: Sequence[SpokenQuestion]
) -> Transcribed:
    """Request transcripts, and compare them with the questions by text and by word."""
    recordings = [each.samples for each in questions]
    texts = await services.hear_all(recordings, f"{title}, transcribed", INSTRUCTION)
    pairs = [(q, text) for q, text in zip(questions, texts, strict=True)]
    wrong = [(question, text) for question, text in pairs if text != write_down(question.asked)]
    errors = sum(word_errors(normalise(q.asked), normalise(text)) for q, text in pairs)
    words = sum(len(normalise(question.asked)) for question in questions)
    exact = len(questions) - len(wrong)
    return Transcribed(title, len(questions), exact, errors / words, wrong)


async def judge_functions(services: Services, seed: int) -> Called:
    """Request every call as text and as audio, and send the results of the typed calls."""
    chance = random.Random(f"judge {seed}")
    functions = [antiphon.Function(**each["function"]) for each in FUNCTIONS]
    calls, typed, spoken, answered = every_call(chance), 0, 0, 0
    for call in calls:
        samples = surround(speak_as(call.asked, draw_manner(chance), HEARING_RATE), chance)
        aloud = await services.write([antiphon.Message.user(wav(samples))], functions)
        spoken += _is_right(aloud, call)
        asked = antiphon.Message.user(f"{call.asked.capitalize()}.")
        reply = await services.write([asked], functions)
        if not _is_right(reply, call):
            continue
        typed += 1
        told = antiphon.Message.tool(reply.calls[0], call.result)
        said = antiphon.Message.assistant(calls=reply.calls)
        answered += (await services.write([asked, said, told], functions)).text == call.answer
    return Called(len(calls), typed, spoken, answered)


def _is_right(reply: antiphon.Reply, call: RequestedCall) -> bool:
    """Return whether the answer consists only of the expected call."""
    found = [(each.name, each.parsed()) for each in reply.calls]
    return found == [(call.name, call.arguments)]


def hearing_table(
    rows: Sequence[Understood], transcribed: Sequence[Transcribed], called: Called
) -> str:
    """Return the results as text."""
    lines = [f"{'spoken questions':<34}{'asked':>7}{'right':>7}"]
    lines += [
        f"{row.title:<34}{row.asked:>7}{row.asked - len(row.misunderstood):>7}" for row in rows
    ]
    lines += ["", f"{'transcripts of them':<34}{'asked':>7}{'exact':>7}{'word errors':>13}"]
    lines += [
        f"{row.title:<34}{row.asked:>7}{row.exact:>7}{row.word_error_rate:>13.3f}"
        for row in transcribed
    ]
    lines += [
        "",
        f"functions: of {called.asked} requests {called.typed} are called when they are typed and "
        f"{called.spoken} when they are spoken,",
        f"and {called.answered} are answered as expected when the function has returned",
    ]
    return "\n".join(lines)
