"""Our engines' speed and the vendor's: `python -m tests.equality.mimo_audio.mimo_speed --help`.

For each case: time and CPU time from the prompt to the whole audio of one answer. The vendor's side
is its `forward`, in this process. Ours are the engines of talker and code2wav without services
around them, in a process of `PYTHON`. Both decode audio whole, and have one thread. Weights are
random and both are greedy. Answers are compared: the ids are the same.

Runs in the environment of the recorder: see the README beside this file.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from antiphon_testkit.mimo_audio.tiny_checkpoint import (
    AUDIO_TOKENIZER,
    LANGUAGE_MODEL,
    build_tiny_mimo,
)
from antiphon_testkit.mimo_audio.tiny_shape import MimoShape
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side
from tests.equality.mimo_audio.mimo_cases import CASES, SEED, clips

HERE = Path(__file__).parent
CPU, WALL = "CPU, s", "time, s"
SHAPE = MimoShape(
    hidden=512,
    intermediate=1024,
    layers=8,
    heads=8,
    kv_heads=2,
    head_dim=64,
    local_heads=8,
    local_hidden=256,
    local_intermediate=512,
    local_layers=8,
    group_hidden=256,
    group_layers=6,
    codec_hidden=256,
    codec_heads=4,
    codec_intermediate=512,
    decoder_layers=8,
    vocoder_hidden=128,
    vocoder_intermediate=256,
    vocoder_layers=8,
)
"""Deep enough for products to be the most of it; released: 36 layers of width 4096."""
BY_NAME = {case.name: case for case in CASES}


class Ours:
    """Our engines, in a process that answers one case for each line."""

    def __init__(self, python: str, folder: Path) -> None:
        command = [python, "-m", "tests.equality.mimo_audio.mimo_speed", "--serve", str(folder)]
        places = os.pathsep.join(map(str, (*HERE.parents[2:3], HERE)))
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": places},
        )

    def ask(self, name: str) -> tuple[Figures, list[int]]:
        """What a case took, and the ids of its answer. Raises `ChildProcessError`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{name}\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise ChildProcessError("our engines ended")
        told = json.loads(line)
        return told["figures"], told["ids"]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def serve(folder: Path) -> None:
    """Answer the cases that come, a line each, until there are no more."""
    from antiphon.deployment.schema import StageConfig
    from antiphon.pipelines.mimo_audio import CODES, PIPELINE, TEXT
    from antiphon.runtime.engine import SegmentSettings
    from antiphon.values.segment import SegmentKey
    from antiphon_services.mimo_audio.code2wav.load import load as load_code2wav
    from antiphon_services.mimo_audio.talker.load import load
    from antiphon_testkit.drive_engine import run_segment
    from tests.equality.mimo_audio.mimo_asking import asked

    config = StageConfig(slots=1, context_limit=1024)
    talker = load(folder / LANGUAGE_MODEL, config).engine
    vocoder = load_code2wav(folder / LANGUAGE_MODEL, config).engine
    for line in sys.stdin:
        settings, chunks = asked(BY_NAME[line.strip()])
        begin, used = time.perf_counter(), time.process_time()
        answer = run_segment(talker, settings, chunks)
        assert answer.failed is None, answer.failed
        if CODES in settings.outputs:
            spoken = SegmentSettings(
                "", settings.sampling, frozenset({"audio"}), whole_inputs=frozenset({CODES})
            )
            heard = run_segment(
                vocoder,
                spoken,
                [each for each in answer.inputs_of(PIPELINE, "code2wav") if each.edge == CODES],
                SegmentKey("heard", 0),
            )
            assert heard.failed is None, heard.failed
        figures = {CPU: time.process_time() - used, WALL: time.perf_counter() - begin}
        ids = answer.tensors(TEXT)["ids"].tolist()
        print(json.dumps({"figures": figures, "ids": ids}), flush=True)


async def compare(given: argparse.Namespace) -> None:
    """Run the rounds of each case."""
    from tests.equality.mimo_audio import mimo_record as record

    module = record.import_vendor(given.vendor, given.torchaudio)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_tiny_mimo(folder, SHAPE, SEED)
        speaker = module.MimoAudio(
            str(folder / LANGUAGE_MODEL), str(folder / AUDIO_TOKENIZER), "cpu"
        )
        record.make_greedy(speaker, module, record.Margins())
        speaker.save_wav = lambda *_: None
        plain = speaker.preprocess_input
        speaker.preprocess_input = lambda each: plain(getattr(each, "samples", each))
        ours = Ours(given.ours, folder)
        try:
            for case_name in given.cases:
                await compare_case(given, case_name, speaker, module, ours)
        finally:
            ours.close()


async def compare_case(
    given: argparse.Namespace, name: str, speaker: Any, module: Any, ours: Ours
) -> None:
    """Run its rounds. Raises `ValueError` where the answers differ."""
    from tests.equality.mimo_audio import mimo_record as record

    case = BY_NAME[name]
    heard = {each: torch.tensor(samples) for each, samples in clips().items()}
    answers: dict[str, list[int]] = {}

    @torch.inference_mode()
    def ask_vendor() -> Figures:
        begin, used = time.perf_counter(), time.process_time()
        prompt = record.prompt_of(speaker, case, heard)
        made, _ = record.answer(speaker, module, case, prompt)
        answers["vendor"] = made[0, :: record.GROUP].tolist()
        return {CPU: time.process_time() - used, WALL: time.perf_counter() - begin}

    def ask_ours() -> Figures:
        figures, answers["ours"] = ours.ask(name)
        if answers["ours"] != answers.get("vendor", answers["ours"]):
            raise ValueError(f"{name}: the answers differ")
        return figures

    sides = [Side("vendor", ask_vendor), Side("ours", ask_ours, ["vendor"])]
    comparison = Comparison(sides, f"{name}, {case.most} positions at most")
    await comparison.run(given.rounds)
    print(f"{name}: {len(answers['ours'])} positions")
    comparison.report()


def main() -> None:
    """Read the command line and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "vendor", type=Path, nargs="?", help="a checkout of the vendor's repository"
    )
    parser.add_argument("torchaudio", type=Path, nargs="?", help="folder of an unpacked wheel")
    parser.add_argument("--ours", metavar="PYTHON", help="of an environment that runs our services")
    parser.add_argument("--cases", nargs="+", default=["tts-long", "asr-voice"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", type=Path, metavar="FOLDER", help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.serve:
        serve(given.serve)
        return
    with stated_machine():
        asyncio.run(compare(given))


if __name__ == "__main__":
    main()
