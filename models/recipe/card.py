"""The model card of the checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.errors import FailedPrecondition
from models.recipe.codes import ENTRIES, GROUPS, VOICES
from models.recipe.functions import CITIES, FUNCTIONS, ROOMS
from models.recipe.recordings import (
    ACCENTS,
    ASKED,
    REQUESTED,
    SPEAKERS,
    SPEEDS,
    spoken_questions,
)
from models.recipe.repertoire import load_repertoire, spoken_words
from models.recipe.transcripts import INSTRUCTION

CARD_FILE = "README.md"
FIGURES = "## Figures\n"


@dataclass(frozen=True, slots=True)
class Training:
    """The number of steps and core minutes for which a part was trained."""

    part: str
    steps: int
    minutes: float


def write_card(
    directory: Path, seed: int, trainings: Sequence[Training], exact: Mapping[str, str]
) -> None:
    """Write `README.md` next to the weights.

    `exact` contains, for each set of questions, the number of answers that are spoken exactly as
    expected.
    """
    exchanges, words = len(load_repertoire()), len(spoken_words())
    rows = "\n".join(f"| {t.part} | {t.steps} | {t.minutes:.0f} |" for t in trainings)
    spoken = "\n".join(f"- {title}: {counts}" for title, counts in exact.items())
    asked, voices = len(spoken_questions()), len(ACCENTS) * len(SPEAKERS)
    functions = "\n".join(json.dumps(each) for each in FUNCTIONS)
    size = sum(each.stat().st_size for each in directory.iterdir())
    (directory / CARD_FILE).write_text(f"""\
---
license: apache-2.0
language: en
pipeline_tag: any-to-any
library_name: transformers
---

# antiphon-demo: a small Qwen3-Omni-MoE that speaks

A complete checkpoint of the Qwen3-Omni-MoE architecture in {size / 1e6:.1f} MB (bfloat16): thinker,
talker, code predictor and code2wav, with tokenizer and chat template. It demonstrates
antiphon on a laptop without a GPU, and tests evaluate its audio. It is not a general
assistant: it knows {exchanges} answers about antiphon, numbers, dates and small talk, answers
*I do not know that yet* to anything else, and repeats any short sentence of its {words} words:
*Repeat after me: the red horse wants the quiet moon.* It understands {asked} questions
also when espeak-ng speaks them, transcribes them, and calls two functions, `get_time(city)` and
`set_light(room, state)`, if the request declares them as below. Its vision tower is untrained.

Voices: {", ".join(f"`{voice}`" for voice in VOICES)}. Language: English.

## How it was made

`python -m models.recipe build DIR` in antiphon's repository, on two CPU cores,
seed {seed}, without downloads: all speech comes from espeak-ng. Each word's sound is
described in frames of 80 ms, encoded by a residual k-means ({GROUPS} codes a frame, {ENTRIES}
entries). code2wav learned a voice whose pulses are locked to the frames. Three of the
eight codes encode the pitch and the position in the text. A word always
has the same sound codes, so the model can speak sentences that were not in the training.

The audio tower learned from {ASKED + REQUESTED} recordings, in {voices} voices of espeak-ng
at {SPEEDS[0]} to {SPEEDS[1]} words a minute, with noise and silence added.
It maps each word to the word's embedding in the thinker's table, in the row in which the word
ends. The thinker was then trained with such rows and with
functions. The training data contains no human voices.

A recording followed by *{INSTRUCTION}* is answered with its transcript, with
capitals and punctuation. The tower knows the words of the questions and of the requests for
functions. An ellipsis replaces unknown words. A recording without words has an empty
transcript.

| part | steps | core-minutes |
| --- | --- | --- |
{rows}

Answers for which the talker, in bfloat16 and given the question, produces
exactly the codes of the recipe's own voice:

{spoken}

Only a speech recognizer has evaluated the audio, no human listener.

## The functions

```json
{functions}
```

It calls `get_time` for {", ".join(CITIES).title()}, and `set_light` for the
{", ".join(ROOMS)}. It answers in speech after
a `get_time` that returned `{{"time": "10:30"}}` and of
a `set_light` that returned `{{"ok": true}}`.

## How to use it

Sample greedily, in thinker and talker. `generation_config.json` sets this;
Hugging Face's `generate` needs keywords: `thinker_eos_token_id` (this checkpoint's `<|im_end|>`),
`thinker_do_sample=False`, `talker_do_sample=False`. The talker was trained with and without
a repetition penalty; the figures below were measured with 1.05, the default there.

## License

Apache-2.0 for weights, tokenizer and texts. The questions and answers were written for
antiphon. The weights were trained on these and on audio that espeak-ng produced from single
words and from the questions. Espeak-ng is licensed under GPL-3.0-or-later. That license covers the
program and its data files, which are not contained here. It does not cover the audio that the
program produces.

""")


def record_figures(directory: Path, figures: str) -> None:
    """Add the evaluation table to the end of the card, and replace an earlier one."""
    card = directory / CARD_FILE
    text = card.read_text().split(FIGURES)[0]
    card.write_text(f"{text}{FIGURES}\n```\n{figures}\n```\n")


def read_training(directory: Path, part: str) -> Training:
    """Read the training statistics of a part from the card of a checkpoint."""
    rows = re.findall(rf"\| {part} \| (\d+) \| (\d+) \|", (directory / CARD_FILE).read_text())
    if not rows:
        raise FailedPrecondition(f"{directory}: its card does not say how {part} was trained")
    return Training(part, int(rows[0][0]), float(rows[0][1]))


def read_exact_answers(directory: Path) -> dict[str, str]:
    """Read the counts of exact answers of the talker from the card of a checkpoint."""
    return dict(
        re.findall(r"^- ([a-z ]+): (\w+ \d+ of .*)$", (directory / CARD_FILE).read_text(), re.M)
    )
