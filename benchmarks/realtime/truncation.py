"""Compare truncated text with the words heard: `python -m benchmarks.realtime.truncation`.

The text that a listener has heard is estimated (`SpokenPart.cut`), because models do not provide an
alignment. The checkpoint in the repository does provide one, because one of its codes contains the
token that each frame speaks. Its answers are therefore truncated at many points, and the words that
the estimate keeps are compared with the words that had actually been spoken.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from antiphon.values.live_conversation import SpokenPart
from antiphon_gateway.conversations.items import cut_part
from models.recipe.asking import Services, Spoken
from models.recipe.codes import TEXT_OVER, TOKEN_GROUP, VOICES
from models.recipe.requests import repertoire_requests

MODEL = Path(__file__).parents[2] / "models" / "antiphon-demo"
FRAME_S = 0.08
EVERY_S = 0.25
AHEAD_S = 1.0
"""The duration of audio that the client has received but not yet played at an interruption."""


def word_ends_s(answer: Spoken, tokenizer: Tokenizer) -> list[float]:
    """Return when each word of an answer has been spoken completely."""
    offsets = tokenizer.encode(answer.text, add_special_tokens=False).offsets
    spoken = answer.codes[:, TOKEN_GROUP]
    ends: dict[int, float] = {}
    for frame, token in enumerate(spoken.tolist()):
        if token == TEXT_OVER or token >= len(offsets):
            continue
        start, end = offsets[token]
        # The last character of the token determines the word to which it belongs.
        word = len(answer.text[:end].split()) - 1
        if answer.text[start:end].strip():
            ends[word] = (frame + 1) * FRAME_S
    return [ends.get(word, np.inf) for word in range(len(answer.text.split()))]


def errors(answer: Spoken, ends_s: list[float], *, complete: bool) -> list[int]:
    """Return the number of additional or missing words at each point where the answer is
    truncated.
    """
    whole_s = len(answer.codes) * FRAME_S
    found = []
    for end_s in np.arange(EVERY_S, whole_s, EVERY_S).tolist():
        sent_s = whole_s if complete else min(whole_s, end_s + AHEAD_S)
        said = cut_part(SpokenPart(answer.text, sent_s), end_s, complete=complete)
        heard = sum(each <= end_s for each in ends_s)
        found.append(len(said.transcript.split()) - heard)
    return found


async def main() -> None:
    """Request answers, truncate them, and print the results."""
    parser = argparse.ArgumentParser(description="the error of what was heard of a cut answer")
    parser.add_argument("--every", type=int, default=4, help="of the repertoire's exchanges")
    asked = parser.parse_args()
    requests = [each for voice in VOICES for each in repertoire_requests(voice)[:: asked.every]]
    async with Services(MODEL) as services:
        answers = await services.ask_all(requests, "answers")
    tokenizer = Tokenizer.from_file(str(MODEL / "tokenizer.json"))
    ends = [word_ends_s(each, tokenizer) for each in answers]
    unknown = sum(np.isinf(each).any() for each in ends)
    print(f"{len(answers)} answers, {unknown} of them with words that were never spoken")
    for complete, name in ((True, "whole answers"), (False, "interrupted answers")):
        off = np.array(
            [
                error
                for answer, ends_s in zip(answers, ends, strict=True)
                for error in errors(answer, ends_s, complete=complete)
            ]
        )
        wrong = np.abs(off)
        print(
            f"{name:<20} {len(off):6} cuts: words off, median {np.median(wrong):.0f}, "
            f"mean {wrong.mean():.2f}, p95 {np.quantile(wrong, 0.95):.0f}, most {wrong.max()}; "
            f"too many in {np.mean(off > 0):.0%}, too few in {np.mean(off < 0):.0%}"
        )


if __name__ == "__main__":
    asyncio.run(main())
