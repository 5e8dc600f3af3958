"""Lets the talker speak by itself, many replies at once, and counts what is exact.

Greedy and with the repetition penalty of the checkpoint's settings. A reply is exact if
every code of every frame, and the frame after which it stops, are the recipe's own:
then the sound is the best that code2wav can make of it.
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

# Frames that a reply may last longer than it should.
OVERTIME = 2


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """What was spoken for each reply: codes [T, 8], cut at the stop."""

    speeches: Sequence[Speech]
    spoken: Sequence[torch.Tensor]

    def exact(self, voice: int) -> tuple[int, int]:
        """How many of a voice's replies have all codes as intended, and how many it has."""
        pairs = zip(self.speeches, self.spoken, strict=True)
        right = [torch.equal(s.codes, codes) for s, codes in pairs if s.voice == voice]
        return sum(right), len(right)

    def describe(self) -> str:
        """The exact replies of each voice."""
        counts = ((name, *self.exact(at)) for at, name in enumerate(VOICES))
        return ", ".join(f"{name} {right} of {total}" for name, right, total in counts)


@torch.no_grad()
def rehearse(talker: Any, loss: TalkerLoss, speeches: Sequence[Speech]) -> Rehearsal:
    """Speak replies, those together whose user turns are equally long.

    The codes of `speeches` are not used but for their number, which bounds how long the
    talker may go on.
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
    """Codes [T, 8] of replies whose prompts are equally long."""
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
    """Greedy ids of group 0 [n]; ids that are no code and not the stop are never spoken."""
    penalty = SETTINGS["talker_repetition_penalty"]
    lower = torch.where(logits > 0, logits / penalty, logits * penalty)
    logits = torch.where(seen, lower, logits)
    logits[:, ENTRIES:EOS] = logits[:, EOS + 1 :] = -torch.inf
    return logits.argmax(-1)


def _fill(talker: Any, hidden: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
    """The predictor's other codes of a frame: [n, 8]."""
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
