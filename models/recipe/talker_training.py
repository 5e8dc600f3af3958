"""Trains the talker and its code predictor with the prompt layout of the pipeline.

User turns have the layout of the chat template and are drawn independently of the reply, so that
the talker only speaks the reply. Half of the turns are realistic questions and half of them consist
of random tokens. Random tokens alone are not sufficient, because the punctuation and special tokens
of questions would be so rare that they attract the look-ups.

The sound and the pitch of previous frames are corrupted. The talker therefore learns to use the
text rows, the requested voice, and the codes that contain the position in the text, and recovers
from a wrong pitch. In every second batch, a repetition penalty is applied to the logits, so that
greedy speech is the same with and without it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from models.recipe.code2wav_training import salad
from models.recipe.codes import (
    BOOKS,
    COUNTDOWNS,
    ENTRIES,
    GROUPS,
    PITCH_GROUP,
    PITCHES,
    TOKEN_GROUP,
    VOICES,
)
from models.recipe.dialogues import AUDIO, Dialogues
from models.recipe.model import EOS
from models.recipe.requests import Request
from models.recipe.units import PAUSES, Lexicon
from models.recipe.vocabulary import Meaning

BATCH = 12
# The maximum number of words in a reply. Every eighth batch contains long replies.
SHORT, LONG = 10, 32
PREDICTED_FRAMES = 320
CORRUPTED_SHARE = 0.15
REPETITION_PENALTY = 1.1
SENTENCE_SHARE = 0.15
ASKED_SHARE = 0.5
# The number of user turns before a short reply, and before a long one.
TURNS, MANY_TURNS = (1, 1, 1, 1, 2), (1, 2, 3, 5)
BEGIN_WEIGHT = 5.0
# A wrong control code loses the position in the text, while a wrong sound code is only a small
# defect.
CONTROL_WEIGHT = 4.0
IGNORED = -100
ASSISTANT_ROWS = 9


@dataclass(frozen=True, slots=True)
class Speech:
    """A reply, with the user's tokens, the reply's tokens, and codes of shape [T, 8]."""

    user: list[int]
    reply: list[int]
    voice: int
    codes: torch.Tensor


class Script:
    """Draws replies to speak, either from the repertoire or with random words."""

    def __init__(
        self, lexicon: Lexicon, tokenizer: Any, known: dict[int, Meaning], texts: Sequence[str]
    ) -> None:
        self._lexicon, self._known, self._tokenizer = lexicon, known, tokenizer
        self._replies = [self._encode(text) for text in texts]
        ids = tokenizer.convert_tokens_to_ids
        self._before, self._after = [*ids(["<|im_start|>", "user"]), 10], [ids("<|im_end|>"), 10]
        self._dialogues = Dialogues()
        self._spellings: dict[str, list[int]] = {}
        for index, meaning in known.items():
            self._spellings.setdefault(meaning.unit, []).append(index)
        self.words = sorted(name for name in self._spellings if name not in PAUSES)

    def draw(self, chance: random.Random, longest: int) -> Speech:
        """Draw a reply of up to `longest` words after random user turns, in a random voice."""
        if longest == SHORT and chance.random() < SENTENCE_SHARE:
            reply = chance.choice(self._replies)
        else:
            reply = [chance.choice(self._spellings[n]) for n in salad(self.words, chance, longest)]
        voice = chance.randrange(len(VOICES))
        turns = chance.choice(TURNS if longest == SHORT else MANY_TURNS)
        user = [index for _ in range(turns) for index in self._turn(chance)]
        return Speech(user, reply, voice, self.codes(reply, voice))

    def answer(self, request: Request) -> Speech:
        """Return the expected answer after the user turn that requests it."""
        user = [*self._before, *self._encode(request.asked), *self._after]
        reply, voice = self._encode(request.expected), list(VOICES).index(request.voice)
        return Speech(user, reply, voice, self.codes(reply, voice))

    def _turn(self, chance: random.Random) -> list[int]:
        """Draw a user turn that is either realistic or consists of random tokens."""
        if chance.random() < ASKED_SHARE:
            asked = self._encode(self._dialogues.turn(chance).asked.replace(AUDIO, ""))
        else:
            size = len(self._tokenizer)
            asked = [chance.randrange(size) for _ in range(chance.randint(1, 14))]
        return [*self._before, *asked, *self._after]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"]) if text else []

    def codes(self, reply: list[int], voice: int) -> torch.Tensor:
        """Return the codes of a reply, with shape [T, 8]."""
        names = [self._known[index].unit for index in reply]
        return torch.from_numpy(self._lexicon.encode(names, voice))


class TalkerLoss:
    """The loss of the talker and the predictor with teacher forcing."""

    def __init__(
        self, config: Any, talker: Any, words: torch.Tensor, script: Script, seed: int
    ) -> None:
        self.config, self.talker, self.words = config, talker, words
        self.script, self._seed = script, seed

    def __call__(self, step: int) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the loss of a step."""
        chance = random.Random(f"{self._seed} {step}")
        generator = torch.Generator().manual_seed(hash((self._seed, step)))
        longest, batch = (LONG, BATCH // 3) if step % 8 == 7 else (SHORT, BATCH)
        speeches = [self.script.draw(chance, longest) for _ in range(batch)]
        rows = [self.rows(speech, generator) for speech in speeches]
        length = max(len(each) for each in rows)
        inputs = torch.stack([F.pad(each, (0, 0, 0, length - len(each))) for each in rows])
        targets = torch.full((batch, length, GROUPS), IGNORED)
        for at, speech in enumerate(speeches):
            begin = len(speech.user) + ASSISTANT_ROWS - 1
            targets[at, begin : begin + len(speech.codes)] = speech.codes
            targets[at, begin + len(speech.codes), 0] = EOS
        hidden = self.talker.model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        logits = self.talker.codec_head(hidden)
        if step % 4 < 2:
            logits = _penalise(logits, targets[..., 0])
        wanted = targets[..., 0]
        first = _weighted(logits, targets)
        spoken = wanted != IGNORED
        right = (logits.argmax(-1) == wanted)[spoken].float().mean()
        rest, others = self._predict(hidden, targets, generator)
        figures = {"first": right.item(), "others": others}
        return first + rest, figures

    def rows(self, speech: Speech, generator: torch.Generator) -> torch.Tensor:
        """Return the talker's input rows for a prompt and its speech, with shape [rows, hidden]."""
        history = _corrupt(speech.codes, generator)
        codec = torch.cat([self.header_rows(speech), self.heard(history)])
        return self.text_rows(speech, len(history)) + codec

    def text_rows(self, speech: Speech, frames: int) -> torch.Tensor:
        """Return the text rows for a prompt and `frames` frames, with shape [rows, hidden]."""
        config = self.config
        pad, bos, eos = config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id
        header = [config.im_start_token_id, config.assistant_token_id, 10]
        trailing = [*speech.reply[1:], eos, *[pad] * frames][:frames]
        text = [*speech.user, *header, pad, pad, pad, pad, bos, speech.reply[0], *trailing]
        rows: torch.Tensor = self.talker.text_projection(self.words[torch.tensor(text)])
        return rows

    def header_rows(self, speech: Speech) -> torch.Tensor:
        """Return the rows that the codec's special tokens add to the prompt, with shape [rows,
        hidden].
        """
        own = self.config.talker_config
        specials = torch.tensor(
            [
                own.codec_nothink_id,
                own.codec_think_bos_id,
                own.codec_think_eos_id,
                list(own.speaker_id.values())[speech.voice],
                own.codec_pad_id,
                own.codec_bos_id,
            ]
        )
        codec: torch.Tensor = self.talker.model.codec_embedding(specials)
        silent = codec.new_zeros(len(speech.user) + ASSISTANT_ROWS - len(specials), codec.shape[1])
        return torch.cat([silent, codec])

    def heard(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the talker's input for its own frames, which have shape [n, 8], as [n, hidden]."""
        heard: torch.Tensor = self.talker.model.codec_embedding(codes[:, 0])
        for group, table in enumerate(self.talker.code_predictor.model.codec_embedding, 1):
            heard = heard + table(codes[:, group])
        return heard

    def _predict(
        self, hidden: torch.Tensor, targets: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, float]:
        """Return the loss and the accuracy of the predictor for a sample of the frames."""
        predictor = self.talker.code_predictor
        places = (targets[..., 1] != IGNORED).nonzero()
        chosen = places[torch.randperm(len(places), generator=generator)[:PREDICTED_FRAMES]]
        codes = targets[chosen[:, 0], chosen[:, 1]]
        inputs = [
            hidden[chosen[:, 0], chosen[:, 1]],
            self.talker.model.codec_embedding(codes[:, 0]),
        ]
        tables = predictor.model.codec_embedding
        inputs += [tables[group - 1](codes[:, group]) for group in range(1, GROUPS - 1)]
        outputs = predictor.model(inputs_embeds=torch.stack(inputs, 1), use_cache=False)
        states = outputs.last_hidden_state[:, 1:]
        logits = torch.stack([head(states[:, at]) for at, head in enumerate(predictor.lm_head)], 1)
        wanted = codes[:, 1:]
        each = F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")
        weight = torch.tensor([1.0] * (BOOKS - 1) + [CONTROL_WEIGHT] * (GROUPS - BOOKS))
        loss = (each * weight).sum() / (weight.sum() * len(each))
        return loss, (logits.argmax(-1) == wanted).float().mean().item()


def _weighted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss of group 0, with a higher weight for the first frames of units.

    These frames only depend on the text. All other frames also depend on the previous frame.
    """
    wanted, token = targets[..., 0], targets[..., TOKEN_GROUP]
    begins = token != F.pad(token, (1, 0), value=IGNORED)[:, :-1]
    weight = torch.where(begins, BEGIN_WEIGHT, 1.0) * (wanted != IGNORED)
    each = F.cross_entropy(logits.transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none")
    return (each * weight).sum() / weight.sum()


def _corrupt(codes: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Corrupt the sound codes of some frames, and the voice and pitch of some frames.

    The countdown is not changed, because only the countdown contains the position within a unit.
    """
    changed = codes.clone()
    noise = torch.randint(0, ENTRIES, (len(codes), BOOKS), generator=generator)
    struck = torch.rand(len(codes), 1, generator=generator) < CORRUPTED_SHARE
    changed[:, :BOOKS] = torch.where(struck, noise, codes[:, :BOOKS])
    pitch = codes[:, PITCH_GROUP]
    other = torch.randint(0, PITCHES, (len(codes),), generator=generator)
    struck = torch.rand(len(codes), generator=generator) < CORRUPTED_SHARE
    strange = other * COUNTDOWNS + pitch % COUNTDOWNS
    changed[:, PITCH_GROUP] = torch.where(struck, strange, pitch)
    return changed


def _penalise(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Apply a repetition penalty based on the group-0 codes before each position."""
    batch, length, size = logits.shape
    seen = torch.zeros(batch, length + 1, size, dtype=torch.bool)
    ids = wanted.clamp_min(0)
    seen[:, 1:].scatter_(2, ids[..., None], (wanted != IGNORED)[..., None])
    seen = seen.cumsum(1)[:, :length] > 0
    lower = torch.where(logits > 0, logits / REPETITION_PENALTY, logits * REPETITION_PENALTY)
    return torch.where(seen, lower, logits)
