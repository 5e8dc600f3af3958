"""Lets the talker generate many replies without teacher forcing, and counts the exact replies.

Decoding is greedy, with the repetition penalty from the settings of the checkpoint. A reply is
exact if every code of every frame, and the frame after which it stops, are as intended. In this
case, the sound is the best that code2wav can generate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from models.recipe.assemble import SETTINGS
from models.recipe.codes import ENTRIES, GROUPS, VOICES
from models.recipe.model import EOS
from models.recipe.talker_training import Speech, TalkerLoss

# The maximum number of frames by which a reply may exceed its expected length.
OVERTIME = 2


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """The codes generated for each reply, of shape [T, 8], up to the stop."""

    speeches: Sequence[Speech]
    spoken: Sequence[torch.Tensor]

    def exact(self, voice: int) -> tuple[int, int]:
        """Return the number of exact replies of a voice, and its total number of replies."""
        pairs = zip(self.speeches, self.spoken, strict=True)
        right = [torch.equal(s.codes, codes) for s, codes in pairs if s.voice == voice]
        return sum(right), len(right)

    def describe(self) -> str:
        """Describe the number of exact replies for each voice."""
        counts = ((name, *self.exact(at)) for at, name in enumerate(VOICES))
        return ", ".join(f"{name} {right} of {total}" for name, right, total in counts)


@torch.no_grad()
def rehearse(talker: Any, loss: TalkerLoss, speeches: Sequence[Speech]) -> Rehearsal:
    """Generate replies. Replies whose user turns have the same length are generated in a batch.

    The codes of `speeches` are only used to limit the length of the replies.
    """
    alike: dict[int, list[int]] = {}
    for at, speech in enumerate(speeches):
        alike.setdefault(len(speech.user), []).append(at)
    found: dict[int, torch.Tensor] = {}
    for places in alike.values():
        spoken = _speak(talker, loss, [speeches[at] for at in places])
        found.update(zip(places, spoken, strict=True))
    return Rehearsal(speeches, [found[at] for at in range(len(speeches))])


def _speak(talker: Any, loss: TalkerLoss, speeches: Sequence[Speech]) -> list[torch.Tensor]:
    """Return codes of shape [T, 8] for replies whose prompts have the same length."""
    longest = max(len(speech.codes) for speech in speeches) + OVERTIME
    texts = torch.stack([loss.text_rows(speech, longest) for speech in speeches])
    headers = torch.stack([loss.header_rows(speech) for speech in speeches])
    prompt = headers.shape[1]
    outputs = talker.model(inputs_embeds=headers + texts[:, :prompt], use_cache=True)
    seen = torch.zeros(len(speeches), talker.codec_head.out_features, dtype=torch.bool)
    stops = torch.full((len(speeches),), longest)
    frames: list[torch.Tensor] = []
    for at in range(longest):
        hidden = outputs.last_hidden_state[:, -1]
        first = _choose(talker.codec_head(hidden), seen)
        stops[(first == EOS) & (stops > at)] = at
        if int(stops.max()) <= at:
            break
        seen.scatter_(1, first[:, None], True)
        frames.append(_fill(talker, hidden, first.clamp_max(ENTRIES - 1)))
        outputs = talker.model(
            inputs_embeds=(loss.heard(frames[-1]) + texts[:, prompt + at])[:, None],
            past_key_values=outputs.past_key_values,
            use_cache=True,
        )
    spoken = torch.stack(frames, 1)
    return [codes[:stop] for codes, stop in zip(spoken, stops.tolist(), strict=True)]


def _choose(logits: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Choose greedy tokens of group 0, with shape [n]. Only codes and the stop token are
    allowed.
    """
    penalty = SETTINGS["talker_repetition_penalty"]
    lower = torch.where(logits > 0, logits / penalty, logits * penalty)
    logits = torch.where(seen, lower, logits)
    logits[:, ENTRIES:EOS] = logits[:, EOS + 1 :] = -torch.inf
    return logits.argmax(-1)


def _fill(talker: Any, hidden: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """Return all codes of a frame, including the predictor's codes, with shape [n, 8]."""
    predictor = talker.code_predictor
    codes = [first]
    inputs = [hidden, talker.model.codec_embedding(first)]
    for group in range(GROUPS - 1):
        states = predictor.model(
            inputs_embeds=torch.stack(inputs, 1), use_cache=False
        ).last_hidden_state
        codes.append(predictor.lm_head[group](states[:, -1]).argmax(-1))
        if group < GROUPS - 2:
            inputs.append(predictor.model.codec_embedding[group](codes[-1]))
    return torch.stack(codes, 1)
