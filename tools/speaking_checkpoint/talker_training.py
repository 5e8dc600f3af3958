"""Trains the talker and its code predictor on the pipeline's own prompt layout.

User rows are random tokens, so the talker learns to speak the reply and nothing else.
The sound codes of the history are corrupted, so it speaks from the text rows and the
three codes that say where in the text it is. Every second batch sees the logits as a
repetition penalty leaves them, so greedy speech is the same with it and without.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from tools.speaking_checkpoint.code2wav_training import salad
from tools.speaking_checkpoint.codes import BOOKS, ENTRIES, GROUPS, TOKEN_GROUP, VOICES
from tools.speaking_checkpoint.model import EOS
from tools.speaking_checkpoint.units import PAUSES, Lexicon
from tools.speaking_checkpoint.vocabulary import Meaning

BATCH = 12
# Words of a reply at most; every eighth batch is of long ones.
SHORT, LONG = 10, 32
PREDICTED_FRAMES = 320
CORRUPTED_SHARE = 0.1
REPETITION_PENALTY = 1.1
SENTENCE_SHARE = 0.15
BEGIN_WEIGHT = 5.0
# A wrong control code loses the place in the text; a wrong sound code is a blemish.
CONTROL_WEIGHT = 4.0
IGNORED = -100
ASSISTANT_ROWS = 9


@dataclass(frozen=True, slots=True)
class Speech:
    """One reply: user ids, reply ids and the codes [T, 8] that speak them."""

    user: list[int]
    reply: list[int]
    voice: int
    codes: torch.Tensor


class Script:
    """Draws replies to speak: of the repertoire, and of random words."""

    def __init__(
        self, lexicon: Lexicon, known: dict[int, Meaning], replies: list[list[int]], size: int
    ) -> None:
        self._lexicon, self._known, self._replies, self._size = lexicon, known, replies, size
        self._spellings: dict[str, list[int]] = {}
        for index, meaning in known.items():
            self._spellings.setdefault(meaning.unit, []).append(index)
        self._words = sorted(name for name in self._spellings if name not in PAUSES)

    def draw(self, chance: random.Random, longest: int) -> Speech:
        """One reply with a random user turn, in a random voice; at most `longest` words."""
        if longest == SHORT and chance.random() < SENTENCE_SHARE:
            reply = chance.choice(self._replies)
        else:
            reply = [chance.choice(self._spellings[n]) for n in salad(self._words, chance, longest)]
        voice = chance.randrange(len(VOICES))
        user = [chance.randrange(self._size) for _ in range(chance.randint(3, 14))]
        return Speech(user, reply, voice, self.codes(reply, voice))

    def codes(self, reply: list[int], voice: int) -> torch.Tensor:
        """The codes that speak a reply: [T, 8]."""
        names = [self._known[index].unit for index in reply]
        return torch.from_numpy(self._lexicon.encode(names, voice))


class TalkerLoss:
    """Teacher forcing of talker and predictor together."""

    def __init__(
        self, config: Any, talker: Any, words: torch.Tensor, script: Script, seed: int
    ) -> None:
        self._config, self._talker, self._words = config, talker, words
        self._script, self._seed = script, seed

    def __call__(self, step: int) -> tuple[torch.Tensor, dict[str, float]]:
        """The loss of one step."""
        chance = random.Random(f"{self._seed} {step}")
        generator = torch.Generator().manual_seed(hash((self._seed, step)))
        longest, batch = (LONG, BATCH // 3) if step % 8 == 7 else (SHORT, BATCH)
        speeches = [self._script.draw(chance, longest) for _ in range(batch)]
        rows = [self.rows(speech, generator) for speech in speeches]
        length = max(len(each) for each in rows)
        inputs = torch.stack([F.pad(each, (0, 0, 0, length - len(each))) for each in rows])
        targets = torch.full((batch, length, GROUPS), IGNORED)
        for at, speech in enumerate(speeches):
            begin = len(speech.user) + ASSISTANT_ROWS - 1
            targets[at, begin : begin + len(speech.codes)] = speech.codes
            targets[at, begin + len(speech.codes), 0] = EOS
        hidden = self._talker.model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        logits = self._talker.codec_head(hidden)
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
        """The talker's input rows for a prompt and its speech: [rows, hidden]."""
        config, talker = self._config, self._talker
        own = config.talker_config
        pad, bos, eos = config.tts_pad_token_id, config.tts_bos_token_id, config.tts_eos_token_id
        header = [config.im_start_token_id, config.assistant_token_id, 10]
        frames = len(speech.codes)
        trailing = [*speech.reply[1:], eos, *[pad] * frames][:frames]
        text = [*speech.user, *header, pad, pad, pad, pad, bos, speech.reply[0], *trailing]
        rows: torch.Tensor = talker.text_projection(self._words[torch.tensor(text)])
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
        codec = talker.model.codec_embedding(specials)
        history = _corrupt(speech.codes, generator)
        heard = talker.model.codec_embedding(history[:, 0])
        for group, table in enumerate(talker.code_predictor.model.codec_embedding, 1):
            heard = heard + table(history[:, group])
        silent = rows.new_zeros(len(speech.user) + 3, rows.shape[1])
        return rows + torch.cat([silent, codec, heard])

    def _predict(
        self, hidden: torch.Tensor, targets: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, float]:
        """Loss and accuracy of the predictor on some of the frames."""
        predictor = self._talker.code_predictor
        places = (targets[..., 1] != IGNORED).nonzero()
        chosen = places[torch.randperm(len(places), generator=generator)[:PREDICTED_FRAMES]]
        codes = targets[chosen[:, 0], chosen[:, 1]]
        inputs = [
            hidden[chosen[:, 0], chosen[:, 1]],
            self._talker.model.codec_embedding(codes[:, 0]),
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
    """Loss of group 0; the frames that begin a unit count more.

    They follow from the text alone, all others from the frame before them too.
    """
    wanted, token = targets[..., 0], targets[..., TOKEN_GROUP]
    begins = token != F.pad(token, (1, 0), value=IGNORED)[:, :-1]
    weight = torch.where(begins, BEGIN_WEIGHT, 1.0) * (wanted != IGNORED)
    each = F.cross_entropy(logits.transpose(1, 2), wanted, ignore_index=IGNORED, reduction="none")
    return (each * weight).sum() / weight.sum()


def _corrupt(codes: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Codes with the sound codes of some frames drawn at random."""
    changed = codes.clone()
    noise = torch.randint(0, ENTRIES, (len(codes), BOOKS), generator=generator)
    struck = torch.rand(len(codes), 1, generator=generator) < CORRUPTED_SHARE
    changed[:, :BOOKS] = torch.where(struck, noise, codes[:, :BOOKS])
    return changed


def _penalise(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Logits after a repetition penalty over the group-0 ids before each position."""
    batch, length, size = logits.shape
    seen = torch.zeros(batch, length + 1, size, dtype=torch.bool)
    ids = wanted.clamp_min(0)
    seen[:, 1:].scatter_(2, ids[..., None], (wanted != IGNORED)[..., None])
    seen = seen.cumsum(1)[:, :length] > 0
    lower = torch.where(logits > 0, logits / REPETITION_PENALTY, logits * REPETITION_PENALTY)
    return torch.where(seen, lower, logits)
