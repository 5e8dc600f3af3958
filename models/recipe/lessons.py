"""Trains the thinker to answer and transcribe spoken input, and to call functions.

Half of the recordings are rows that the trained tower has generated. The other half is synthetic.
Synthetic rows have the form that the tower is trained to generate (`tower_training`): words among
placeholders, with slightly inaccurate positions and some noise. This allows for more variety than
the recordings. The training continues to include typed conversations, so that nothing is forgotten.
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
# The types of lessons by step, and the approximate total number of turns. All conversations of a
# step have the same number of turns, so that little computation is wasted on padding. Lessons have
# the greatest influence on copying, so half of them are typed, and most of the typed lessons
# require copying.
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
# The number of recordings that the tower processes for the lessons, and how many of them do not
# contain words.
HEARD_COUNT, NOISES = 8000, 100
TOGETHER = 20
NOISE = 0.08
ASIDES = ("Answer the question.", "Please answer.", "Answer in one sentence.", "What do you say?")


HeardRows = dict[str, list[torch.Tensor]]
"""The tower's rows of recordings, of shape [n, hidden], by text. The key "" stands for noise."""


@dataclass(slots=True)
class Written:
    """A partial conversation, with token IDs and training targets.

    `wanted` contains the tokens that the assistant should generate. Each entry of `heard` contains
    the first position of a recording, the position after it, and the tower's rows if the recording
    was processed by the tower.
    """

    ids: list[int] = field(default_factory=list)
    wanted: list[int] = field(default_factory=list)
    heard: list[tuple[int, int, torch.Tensor | None]] = field(default_factory=list)

    def add(self, ids: Sequence[int], *, learn: bool = False) -> None:
        """Append tokens. If `learn` is true, the assistant is trained to generate them."""
        self.ids += ids
        self.wanted += ids if learn else [IGNORED] * len(ids)


class LessonsLoss:
    """The next-token loss for the assistant's messages, with spoken input and function calls."""

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
        """Return the loss of a step."""
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
        """Return input rows of shape [n, hidden]. Rows of synthetic recordings are blurred."""
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
        """Return the tokens with which all conversations of a step begin, and a function that draws
        the rest.
        """
        if kind != "functions":
            return [], getattr(self, f"_{kind}")
        given = [*FUNCTIONS] if chance.random() < 0.85 else [chance.choice(FUNCTIONS)]
        chance.shuffle(given)
        system = chance.choice(SYSTEMS) if chance.random() < 0.3 else ""
        names = tuple(FUNCTIONS.index(each) for each in given)
        return self._tools_prompt(system, names), partial(self._functions, given)

    def read(self, opening: Sequence[int], rows: torch.Tensor) -> torch.Tensor:
        """Return the decoder's output for `rows` of shape [n, length, hidden], which share an
        opening.

        The opening is only processed once, because the message that describes the functions is
        longer than most conversations.
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
        """Return whether the content of a recording is not part of the training."""
        plain = {text.removeprefix(each.replace(",", "")) for each in OPENERS}
        plain |= {text.removesuffix(each.replace(",", "")) for each in CLOSERS}
        return not plain & known

    def _typed(self, chance: random.Random, turns: int) -> Written:
        """Return a typed conversation, as in the previous training of the thinker."""
        return self._write(self._dialogues.turn, chance, turns)

    def _repeated(self, chance: random.Random, turns: int) -> Written:
        """Return commands to repeat words, as in the previous training of the thinker."""
        return self._write(self._dialogues.repeat, chance, turns)

    def _write(
        self, draw: Callable[[random.Random], DialogueTurn], chance: random.Random, turns: int
    ) -> Written:
        """Return a typed conversation."""
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
        """Return a conversation of spoken questions and some typed questions."""
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
        """Return a conversation that requests transcripts of recordings, most of them from the
        repertoire.
        """
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
            # Misheard words can only be inferred if the text is part of the repertoire.
            misheard = 0.0 if 0.14 <= draw < 0.3 else MISHEARD
            instruction = self._encode(draw_instruction(chance))
            self._play(written, text, chance, misheard=misheard, behind=instruction)
            self._say(written, "assistant", self._encode(write_down(text, strange)), learn=True)
        return written

    def _is_unwritable(self, word: str) -> bool:
        """Return whether the tower has no row for a word."""
        return self.words.unknown in self.words.encode(self._tokenizer, word)

    def _question(self, chance: random.Random) -> tuple[str, str]:
        """Draw a spoken question and its answer. The question is "" for noise."""
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
        """Return a conversation with function calls, their results, and the answers."""
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
        """Add a user turn. The question is typed, or spoken and followed by a typed text."""
        if question and chance.random() < typed:
            self._say(written, "user", self._encode(reword(question, chance)))
            return
        if question not in self._recorded or chance.random() >= RECORDED:
            question = self._vary(question, chance)
        self._play(written, question, chance, misheard=MISHEARD, behind=self._encode(aside))

    def _vary(self, question: str, chance: random.Random) -> str:
        """Add an opening or a closing to a question in some cases."""
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
        """Add a user turn with a recording of a text, followed by typed tokens."""
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
        """Return the tokens of the rows that the tower would generate for a spoken text."""
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
        """Return the system message that describes functions, as formatted by the chat template."""
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
    """Return the trained tower's rows for recordings and noise, with random background sounds."""
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
    """Format a call in the same way as the chat template."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments)}}}\n</tool_call>'
