"""Records what the vendor's talker says to texts that come in pieces: `pieces.json`.

Runs as `cosy_record` does: see the README beside this file. The vendor's code has no end of its own
for an utterance that does not draw one, and fails at ids that its models are not trained to draw.
Behind the end of the text the second is an end here; else the case is recorded with another seed.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import soundfile
import torch

from antiphon_testkit.cosyvoice3.tiny_checkpoint import VOICES, build_tiny_cosyvoice
from tests.equality.cosyvoice3.cosy_cases import (
    INSTRUCT,
    INSTRUCTION,
    REFERENCE_TEXT,
    PiecedCase,
    draw_few_ends,
    pieced_cases,
    reference_audio,
)
from tests.equality.cosyvoice3.cosy_record import (
    END_OF_PROMPT,
    HERE,
    SYSTEM,
    Draws,
    Narrow,
    import_vendor,
    inject,
)
from tests.equality.recording import RATE_HZ, SEED

DRAWS_OF_A_TEXT_ID = 20
UUID = "recorded"


class Pieces:
    """A text word by word, and whether all of it was taken."""

    def __init__(self, text: str) -> None:
        self.taken = False
        self._text = text

    def __iter__(self) -> Generator[str, None, None]:
        words = self._text.split(" ")
        yield words[0]
        yield from (f" {each}" for each in words[1:])
        self.taken = True


class TooLong(Exception):
    """The utterance has more draws than antiphon makes."""


def prompt_of(speaker: Any, case: PiecedCase, wav: str) -> dict[str, Any]:
    """What the vendor's front end makes of all but the text."""
    front_end = speaker.frontend
    if case.mode == INSTRUCT:
        asked = f"{SYSTEM} {INSTRUCTION}{END_OF_PROMPT}"
        told: dict[str, Any] = front_end.frontend_instruct2("", asked, wav, RATE_HZ, "")
    else:
        heard = "" if case.voice else f"{SYSTEM}{END_OF_PROMPT}{REFERENCE_TEXT}"
        told = front_end.frontend_zero_shot("", heard, wav, RATE_HZ, case.voice.capitalize())
    return told


def ask(speaker: Any, case: PiecedCase, told: dict[str, Any], draws: Draws) -> Sequence[int]:
    """The codes of a case."""
    pieces, model = Pieces(case.text), speaker.model
    text, _ = speaker.frontend._extract_text_token(each for each in pieces)
    count = len(speaker.frontend.tokenizer.encode(case.text))
    model.tts_speech_token_dict[UUID] = codes = []
    none = torch.zeros(1, 0, dtype=torch.int32)
    before = Draws.multinomial
    ended: list[int] = []

    def bounded(self: Draws, *given: Any) -> torch.Tensor:
        if pieces.taken:
            ended.append(self.step)
            if self.step - ended[0] >= DRAWS_OF_A_TEXT_ID * count:
                raise TooLong
        return before(self, *given)

    Draws.multinomial = bounded  # type: ignore[method-assign]
    try:
        model.llm_job(
            text,
            told["prompt_text"],
            told.get("llm_prompt_speech_token", none),
            told["llm_embedding"],
            UUID,
        )
    except ValueError:
        if not pieces.taken:
            raise
    finally:
        Draws.multinomial = before  # type: ignore[method-assign]
    return [int(each) for each in codes]


def main() -> None:
    """Write `pieces.json`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("vendor", type=Path, help="folder of the vendor's checkouts")
    parser.add_argument("torchaudio", type=Path, help="folder of an unpacked wheel of torchaudio")
    given = parser.parse_args()
    vendor = import_vendor(given.vendor, given.torchaudio)
    logging.disable(logging.INFO)
    told, draws = [], Draws()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        wav = str(folder / "reference.wav")
        soundfile.write(wav, reference_audio(), RATE_HZ)
        speakers = {}
        for asks in (False, True):
            build_tiny_cosyvoice(folder / f"{asks}", VOICES, SEED)
            draw_few_ends(folder / f"{asks}", asks=asks)
            speakers[asks] = vendor(str(folder / f"{asks}"))
        inject(speakers[False], draws)
        for number, case in enumerate(pieced_cases()):
            prompt = prompt_of(speakers[case.asks], case, wav)
            for seed in range(number, 100_000, 100):
                draws.begin(seed)
                try:
                    codes = ask(speakers[case.asks], case, prompt, draws)
                except (Narrow, TooLong, ValueError) as error:
                    print(case.name, seed, draws.step, repr(error)[:60], flush=True)
                    continue
                break
            told.append({"case": case.name, "seed": seed, "draws": draws.step + 1, "codes": codes})
            print(case.name, seed, draws.step + 1, len(codes), flush=True)
    rows = ",\n".join(f"  {json.dumps(each)}" for each in told)
    (HERE / "pieces.json").write_text(f'{{"cases": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    main()
