"""Teaches the trained thinker to answer and to transcribe what is spoken, and to call functions.

Half of the recordings are rows that the trained tower wrote; the others are written as it is
taught to (`tower_training`): words among placeholders, not quite in their places and not
quite clean, so that there are more than were recorded. Typed conversations go on, so that
nothing is forgotten.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

import torch
from torch.nn import functional as F
from transformers import DynamicCache

from models.recipe.dialogues import (
    AUDIO,
    CLOSERS,
    OPENERS,
    SYSTEMS,
    Dialogues,
    DialogueTurn,
    reword,
)
from models.recipe.functions import (
    FUNCTIONS,
    NO_CLOCK,
    draw_call,
    function_requests,
)
from models.recipe.recordings import (
    MelRecording,
    Surroundings,
    spoken_questions,
)
from models.recipe.repertoire import NOT_UNDERSTOOD, UNKNOWN, load_repertoire
from models.recipe.tower_training import HeardWords, hear
from models.recipe.transcripts import draw_instruction, write_down

IGNORED = -100
# By step: what is taught, and in about how many turns. The conversations of a step have equally
# many, so that little is computed for the shorter ones in vain.
# Copying is what the lessons disturb most: half of them are typed, and most of those copy.
KINDS = (
    ("typed", 32),
    ("transcribed", 24),
    ("heard", 24),
    ("repeated", 32),
    ("transcribed", 24),
    ("functions", 12),
    ("heard", 24),
    ("transcribed", 24),
    ("repeated", 32),
)
TURNS = (1, 1, 2, 3)
LONGEST_WORD = 6
LEAD, TAIL = (1, 9), (0, 12)
BLURRED, DOUBLED, MISHEARD = 0.3, 0.12, 0.05
RECORDED = 0.7
# Recordings that the tower hears for the lessons, and those of them without words.
HEARD_COUNT, NOISES = 8000, 100
TOGETHER = 20
NOISE = 0.08
ASIDES = ("Answer the question.", "Please answer.", "Answer in one sentence.", "What do you say?")


HeardRows = dict[str, list[torch.Tensor]]
"""The tower's rows [n, hidden] of recordings, by what they say; "" are those of noise."""


@dataclass(slots=True)
class Written:
    """A conversation so far: ids, those wanted of the assistant, and where it is heard.

    `heard` has the first id of a recording, the one behind it, and the tower's rows if it has
    heard this one.
    """

    ids: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    heard: list[tuple[int, int, torch.Tensor | None]] = field(default_factory=list)

    def add(self, ids: Sequence[int], *, learn: bool = False) -> None:
        """Append ids; the assistant is to say them with `learn`."""
        self.ids += ids
        self.wanted += ids if learn else [IGNORED] * len(ids)


class LessonsLoss:
    """Next-token loss on the assistant's words, spoken to and with functions."""

    def __init__(self, thinker: Any, tokenizer: Any, recorded: HeardRows, seed: int) -> None:
        self.thinker, self._tokenizer, self._seed = thinker, tokenizer, seed
        self._recorded = recorded
        self._right: dict[str, float] = {}
        self._dialogues = Dialogues()
        table = thinker.model.embed_tokens.weight.detach()
        self.words = HeardWords.of(tokenizer, table)
        self.table = table
        self.answers = {q: e.answer for e in load_repertoire() for q in e.questions}
        self._questions = spoken_questions()
        known = {*self._questions, *function_requests(), ""}
        self.strange = sorted(text for text in recorded if self._is_strange(text, known))
        ids = tokenizer.convert_tokens_to_ids
        self._start, self._end, self._newline = ids("<|im_start|>"), ids("<|im_end|>"), 10
        self._audio = [ids("<|audio_start|>"), ids("<|audio_end|>")]
        self._tools_prompt = cache(self._render_tools)

    def __call__(self, step: int) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of one step."""
        chance = random.Random(f"lesson {self._seed} {step}")
        generator = torch.Generator().manual_seed(step)
        kind, total = KINDS[step % len(KINDS)]
        turns = chance.choice(TURNS)
        opening, draw = self.begin(kind, chance)
        drawn = [draw(chance, turns) for _ in range(total // turns)]
        longest = max(len(each.ids) for each in drawn)
        rows = [
            F.pad(self.rows(each, chance, generator), (0, 0, 0, longest - len(each.ids)))
            for each in drawn
        ]
        wanted = torch.tensor(
            [each.wanted + [IGNORED] * (longest - len(each.ids)) for each in drawn]
        )
        hidden = self.read(opening, torch.stack(rows))
        spoken = wanted[:, 1:] != IGNORED
        logits = self.thinker.lm_head(hidden[:, :-1][spoken])
        target = wanted[:, 1:][spoken]
        right = (logits.argmax(-1) == target).float().mean()
        self._right[f"{kind} right"] = right.item()
        return F.cross_entropy(logits, target), dict(self._right)

    def rows(
        self, written: Written, chance: random.Random, generator: torch.Generator
    ) -> torch.Tensor:
        """Input rows [n, hidden]; what is heard is blurred."""
        rows: torch.Tensor = self.table[torch.tensor(written.ids)]
        for begin, end, recorded in written.heard:
            if recorded is not None:
                rows[begin:end] = recorded
                continue
            heard, pad = rows[begin:end], self.words.rows[0]
            written_row = (heard != pad).any(1, keepdim=True)
            share = torch.rand(len(heard), 1, generator=generator)
            clean = torch.where(written_row, 1 - BLURRED * share, 1.0)
            noise = NOISE * torch.randn(heard.shape, generator=generator)
            rows[begin:end] = clean * heard + (1 - clean) * pad + noise * chance.random()
        return rows

    def begin(
        self, kind: str, chance: random.Random
    ) -> tuple[list[int], Callable[[random.Random, int], Written]]:
        """The ids that all conversations of a step begin with, and what draws the others."""
        if kind != "functions":
            return [], getattr(self, f"_{kind}")
        given = [*FUNCTIONS] if chance.random() < 0.85 else [chance.choice(FUNCTIONS)]
        chance.shuffle(given)
        system = chance.choice(SYSTEMS) if chance.random() < 0.3 else ""
        names = tuple(FUNCTIONS.index(each) for each in given)
        return self._tools_prompt(system, names), partial(self._functions, given)

    def read(self, opening: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """The decoder's rows for `rows` [n, length, hidden], which all follow one opening.

        That is read once: the message that describes the functions is longer than most
        conversations.
        """
        model = self.thinker.model
        cache = DynamicCache(config=model.config)
        if opening:
            first = self.table[torch.tensor(opening)][None]
            model(inputs_embeds=first, past_key_values=cache, use_cache=True)
            cache.batch_repeat_interleave(len(rows))
        outputs = model(inputs_embeds=rows, past_key_values=cache, use_cache=True)
        hidden: torch.Tensor = outputs.last_hidden_state
        return hidden

    def _is_strange(self, text: str, known: set[str]) -> bool:
        """Whether nothing was learned about what a recording says."""
        plain = {text.removeprefix(each.replace(",", "")) for each in OPENERS}
        plain |= {text.removesuffix(each.replace(",", "")) for each in CLOSERS}
        return not plain & known

    def _typed(self, chance: random.Random, turns: int) -> Written:
        """What the thinker has learned before."""
        return self._write(self._dialogues.turn, chance, turns)

    def _repeated(self, chance: random.Random, turns: int) -> Written:
        """Commands to say words, of what the thinker has learned before."""
        return self._write(self._dialogues.repeat, chance, turns)

    def _write(
        self, draw: Callable[[random.Random], DialogueTurn], chance: random.Random, turns: int
    ) -> Written:
        """A typed conversation."""
        written = Written()
        system = self._dialogues.system(chance)
        if system is not None:
            self._say(written, "system", self._encode(system))
        for _ in range(turns):
            turn = draw(chance)
            while AUDIO in turn.asked:
                turn = draw(chance)
            self._say(written, "user", self._encode(turn.asked))
            self._say(written, "assistant", self._encode(turn.answer), learn=True)
        return written

    def _heard(self, chance: random.Random, turns: int) -> Written:
        """Questions that are spoken, and some that are typed between them."""
        written = Written()
        if chance.random() < 0.3:
            self._say(written, "system", self._encode(chance.choice(SYSTEMS)))
        for _ in range(turns):
            question, answer = self._question(chance)
            aside = chance.choice(ASIDES) if chance.random() < 0.1 else ""
            self.ask(written, question, chance, typed=0.15, aside=aside)
            self._say(written, "assistant", self._encode(answer), learn=True)
        return written

    def _transcribed(self, chance: random.Random, turns: int) -> Written:
        """Recordings of which the words are wanted; most are of the repertoire."""
        written = Written()
        for _ in range(turns):
            draw = chance.random()
            if draw < 0.06:
                text = ""
            elif draw < 0.14:
                text = draw_call(chance).asked
            elif draw < 0.3 and self.strange and chance.random() < RECORDED:
                text = chance.choice(self.strange)
            elif draw < 0.3:
                text = self._dialogues.unknown(chance)
            else:
                text = self._vary(chance.choice(self._questions), chance)
            text = text.replace(",", "")
            strange = {word for word in text.split() if self._is_unwritable(word)}
            # What was misheard can be guessed in the repertoire alone.
            misheard = 0.0 if 0.14 <= draw < 0.3 else MISHEARD
            instruction = self._encode(draw_instruction(chance))
            self._play(written, text, chance, misheard=misheard, behind=instruction)
            self._say(written, "assistant", self._encode(write_down(text, strange)), learn=True)
        return written

    def _is_unwritable(self, word: str) -> bool:
        """Whether the tower has no row for a word."""
        return self.words.unknown in self.words.encode(self._tokenizer, word)

    def _question(self, chance: random.Random) -> tuple[str, str]:
        """What is asked aloud, "" for noise, and the answer."""
        draw = chance.random()
        if draw < 0.06:
            return "", NOT_UNDERSTOOD
        if draw < 0.2:
            if self.strange and chance.random() < RECORDED:
                return chance.choice(self.strange), UNKNOWN
            return self._dialogues.unknown(chance), UNKNOWN
        if draw < 0.24:
            call = draw_call(chance)
            return call.asked, NO_CLOCK if call.name == "get_time" else UNKNOWN
        question = chance.choice(self._questions)
        return question, self.answers[question]

    def _functions(
        self, given: Sequence[dict[str, Any]], chance: random.Random, turns: int
    ) -> Written:
        """Requests with functions: the call, what the function said, and the answer."""
        written = Written()
        for _ in range(turns):
            if chance.random() < 0.3:
                question, answer = self._question(chance)
                while not question or answer in (NO_CLOCK, UNKNOWN):
                    question, answer = self._question(chance)
                self.ask(written, question, chance, typed=0.6)
                self._say(written, "assistant", self._encode(answer), learn=True)
                continue
            call = draw_call(chance)
            self.ask(written, call.asked, chance, typed=0.5)
            if call.name not in (each["function"]["name"] for each in given):
                answer = NO_CLOCK if call.name == "get_time" else UNKNOWN
                self._say(written, "assistant", self._encode(answer), learn=True)
                continue
            called = write_call(call.name, call.arguments)
            self._say(written, "assistant", self._encode(called), learn=True)
            result = f"<tool_response>\n{call.result}\n</tool_response>"
            self._say(written, "user", self._encode(result))
            self._say(written, "assistant", self._encode(call.answer), learn=True)
        return written

    def ask(
        self,
        written: Written,
        question: str,
        chance: random.Random,
        *,
        typed: float,
        aside: str = "",
    ) -> None:
        """A user turn: the question typed, or spoken and followed by a typed aside."""
        if question and chance.random() < typed:
            self._say(written, "user", self._encode(reword(question, chance)))
            return
        if question not in self._recorded or chance.random() >= RECORDED:
            question = self._vary(question, chance)
        self._play(written, question, chance, misheard=MISHEARD, behind=self._encode(aside))

    def _vary(self, question: str, chance: random.Random) -> str:
        """A question with an opening or a closing now and then."""
        if question and chance.random() < 0.15:
            return chance.choice(OPENERS) + question
        if question and chance.random() < 0.1:
            return question + chance.choice(CLOSERS)
        return question

    def _play(
        self,
        written: Written,
        text: str,
        chance: random.Random,
        *,
        misheard: float,
        behind: Sequence[int] = (),
    ) -> None:
        """A user turn: a recording of a text, and typed ids behind it."""
        recorded, ids = None, []
        if text in self._recorded and chance.random() < RECORDED:
            recorded = chance.choice(self._recorded[text])
            ids = [self.words.ids[0]] * len(recorded)
        else:
            ids = self.hear(text.replace(",", ""), chance, misheard)
        begin = len(written.ids) + 4
        self._say(written, "user", [self._audio[0], *ids, self._audio[1], *behind])
        written.heard.append((begin, begin + len(ids), recorded))

    def hear(self, text: str, chance: random.Random, misheard: float) -> list[int]:
        """The ids of the rows that the tower writes for a text, as it may be spoken."""
        words, pad = self.words, self.words.ids[0]
        found = [pad] * chance.randint(*LEAD)
        if not text:
            return found + [pad] * chance.randint(3, 60)
        for at in words.encode(self._tokenizer, text):
            if chance.random() < misheard:
                at = chance.choice((0, chance.randrange(len(words.ids))))
            found += [pad] * max(0, chance.randint(0, LONGEST_WORD) - 1)
            if found[-1] == words.ids[at]:
                found.append(pad)
            found += [words.ids[at]] * (2 if chance.random() < DOUBLED else 1)
        return found + [pad] * chance.randint(*TAIL)

    def _say(
        self, written: Written, role: str, content: Sequence[int], *, learn: bool = False
    ) -> None:
        role_id = self._tokenizer.convert_tokens_to_ids(role)
        written.add([self._start, role_id, self._newline])
        written.add([*content, self._end], learn=learn)
        written.add([self._newline])

    def _render_tools(self, system: str, names: tuple[int, ...]) -> list[int]:
        """The system message that tells of functions, as the chat template writes it."""
        messages = [{"role": "system", "content": system}] if system else []
        text = self._tokenizer.apply_chat_template(
            [*messages, {"role": "user", "content": ""}],
            tools=[FUNCTIONS[at] for at in names],
            tokenize=False,
        )
        return self._encode(text[: text.index("<|im_start|>user")])

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"]) if text else []


@torch.no_grad()
def listen_to(tower: Any, recordings: Sequence[MelRecording], seed: int) -> HeardRows:
    """The trained tower's rows of recordings, each in surroundings of its own, and of noise."""
    around, chance = Surroundings(seed), random.Random(f"listen {seed}")
    drawn = chance.sample(list(recordings), min(HEARD_COUNT, len(recordings)))
    features = [(each.text, around.add(each, chance)[0]) for each in drawn]
    features += [("", around.nothing(chance)) for _ in range(NOISES)]
    found: HeardRows = {}
    for at in range(0, len(features), TOGETHER):
        some = features[at : at + TOGETHER]
        rows = hear(tower, [each for _, each in some])
        for (text, _), each in zip(some, rows, strict=True):
            found.setdefault(text, []).append(each)
    return found


def write_call(name: str, arguments: dict[str, str]) -> str:
    """A call as the chat template writes it."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
