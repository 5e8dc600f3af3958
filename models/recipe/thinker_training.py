"""Trains the text model of the thinker on conversations, with the real chat template.

The word embeddings are not trained, so the thinker and the talker can be trained in parallel.
Recordings are processed by the real audio tower, which is not trained yet.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from models.recipe.dialogues import AUDIO, Dialogues, DialogueTurn

BATCH = 20
IGNORED = -100
# The number of earlier turns by step. All conversations in a batch have the same number.
EARLIER_TURNS = (0, 1, 0, 2, 0, 1, 0, 3)
RECORDINGS = 24
LISTENING_RATE = 16_000


class ThinkerLoss:
    """The next-token loss for the assistant's messages."""

    def __init__(
        self, thinker: Any, tokenizer: Any, recordings: list[torch.Tensor], seed: int
    ) -> None:
        self._thinker, self._tokenizer, self._seed = thinker, tokenizer, seed
        self._recordings = recordings
        self.dialogues = Dialogues()
        ids = tokenizer.convert_tokens_to_ids
        self._start, self._end, self._newline = ids("<|im_start|>"), ids("<|im_end|>"), 10
        self._roles = {role: ids(role) for role in ("system", "user", "assistant")}
        self._audio = [ids("<|audio_start|>"), ids("<|audio_pad|>"), ids("<|audio_end|>")]

    def __call__(self, step: int) -> tuple[torch.Tensor, dict[str, float]]:
        """Return the loss of a step."""
        chance = random.Random(f"{self._seed} {step}")
        earlier = EARLIER_TURNS[step % len(EARLIER_TURNS)]
        drawn = [self.draw(chance, earlier) for _ in range(BATCH // (1 + earlier // 2))]
        longest = max(len(rows) for rows, _ in drawn)
        inputs = torch.stack([F.pad(rows, (0, 0, 0, longest - len(rows))) for rows, _ in drawn])
        wanted = torch.stack(
            [F.pad(each, (0, longest - len(each)), value=IGNORED) for _, each in drawn]
        )
        hidden = self._thinker.model(inputs_embeds=inputs, use_cache=False).last_hidden_state
        spoken = wanted[:, 1:] != IGNORED
        logits = self._thinker.lm_head(hidden[:, :-1][spoken])
        target = wanted[:, 1:][spoken]
        right = (logits.argmax(-1) == target).float().mean()
        return F.cross_entropy(logits, target), {"right": right.item()}

    def draw(self, chance: random.Random, earlier: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return input rows of shape [n, hidden] and target tokens of shape [n].

        The conversation has `earlier` turns before the last one.
        """
        ids: list[int] = []
        wanted: list[int] = []
        heard: list[torch.Tensor] = []

        def add(role: str, content: list[int], learn: bool) -> None:
            head = [self._start, self._roles[role], self._newline]
            ids.extend([*head, *content, self._end, self._newline])
            answer = [*content, self._end] if learn else [IGNORED] * (len(content) + 1)
            wanted.extend([IGNORED] * 3 + answer + [IGNORED])

        system = self.dialogues.system(chance)
        if system is not None:
            add("system", self._encode(system), learn=False)
        for _ in range(earlier + 1):
            turn = self.dialogues.turn(chance)
            add("user", self.user(turn, chance, heard), learn=False)
            add("assistant", self._encode(turn.answer), learn=True)
        index = torch.tensor(ids)
        rows = self._thinker.model.embed_tokens.weight[index].clone()
        if heard:
            rows[index == self._audio[1]] = torch.cat(heard)
        return rows, torch.tensor(wanted)

    def user(
        self, turn: DialogueTurn, chance: random.Random, heard: list[torch.Tensor]
    ) -> list[int]:
        """Return the tokens of a user turn. The rows of its recordings are appended to `heard`."""
        if AUDIO not in turn.asked:
            return self._encode(turn.asked)
        before, after = turn.asked.split(AUDIO)
        rows = chance.choice(self._recordings)
        heard.append(rows)
        opening, pad, closing = self._audio
        audio = [opening, *[pad] * len(rows), closing]
        return [*self._encode(before), *audio, *self._encode(after)]

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text)["input_ids"]) if text else []


@torch.no_grad()
def listen(thinker: Any, directory: Path, seed: int) -> list[torch.Tensor]:
    """Return the untrained audio tower's rows for noise and tones with a length of 0.3 to 6
    seconds.

    `directory` contains the checkpoint's `preprocessor_config.json`.
    """
    from transformers import WhisperFeatureExtractor

    extractor: Any = WhisperFeatureExtractor.from_pretrained(directory)
    generator = np.random.default_rng(seed)
    found = []
    for seconds in np.linspace(0.3, 6.0, RECORDINGS):
        time = np.arange(int(seconds * LISTENING_RATE)) / LISTENING_RATE
        tone = np.sin(2 * np.pi * generator.uniform(80, 900) * time) * generator.uniform(0, 0.5)
        noise = generator.normal(0, generator.uniform(0.001, 0.1), len(time))
        features = extractor(
            [(tone + noise).astype(np.float32)],
            sampling_rate=LISTENING_RATE,
            padding=True,
            truncation=False,
            return_attention_mask=True,
            return_tensors="pt",
        )
        rows = thinker.get_audio_features(features["input_features"], features["attention_mask"])
        found.append(rows.last_hidden_state)
    return found
