"""The command line: `python -m models.recipe build DIR` and `python -m models.recipe judge DIR`."""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from antiphon.errors import AntiphonError

REPEATED_SENTENCES = 100
# The seed for sentences to repeat. The training uses different seeds.
JUDGES_SEED = 4321
IN_CHUNKS = 6
STEPS = ("code2wav", "talker", "thinker", "tower", "lessons")
PICTURED = (0, 10, 21, 40)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    parser = _make_parser()
    options = parser.parse_args(arguments)
    try:
        return _build(options) if options.command == "build" else asyncio.run(_judge(options))
    except (AntiphonError, OSError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1


def _build(options: argparse.Namespace) -> int:
    import torch

    from models.recipe.build import Recipe, Workshop, default_work_directory

    torch.set_num_threads(options.threads)
    given = {f.name: getattr(options, f.name) for f in fields(Recipe)}
    recipe = Recipe(**{name: value for name, value in given.items() if value is not None})
    workshop = Workshop(options.work or default_work_directory(), recipe, options.keep)
    if options.only:
        workshop.train(options.only, 60 * (options.minutes or math.inf))
        return 0
    size = workshop.adopt(options.directory) if options.now else workshop.finish(options.directory)
    print(f"{options.directory}: {size / 1e6:.1f} MB")
    return 0


async def _judge(options: argparse.Namespace) -> int:
    from models.recipe import hearing, judge
    from models.recipe.asking import Services
    from models.recipe.card import record_figures
    from models.recipe.codes import VOICES
    from models.recipe.pictures import draw_answers
    from models.recipe.requests import repeat_requests, repertoire_requests

    repeated = repeat_requests(options.repeated, options.seed)
    rows, pictured, wrong = [], [], []
    async with Services(options.directory) as services:
        for voice in VOICES:
            requests = repertoire_requests(voice)[:: options.every]
            answers = await services.ask_all(requests, voice)
            rows.append(judge.judge(f"repertoire, {voice}", answers))
            wrong += [answer for answer in answers if not answer.right]
            chosen = [at for at in PICTURED if at < len(answers)]
            pictured += [(f"{voice}-{at}", answers[at]) for at in chosen]
        answers = await services.ask_all(repeated, "repeat after me")
        rows.append(judge.judge("repeat after me", answers))
        wrong += [answer for answer in answers if not answer.right]
        pictured += [(f"repeated-{at}", answers[at]) for at in range(2)]
        asked = [*requests[:IN_CHUNKS], *repeated[:IN_CHUNKS]]
        understood, transcribed = [], []
        for title, unheard in (("voices of the training", False), ("other voices", True)):
            spoken = hearing.speak_questions(options.every, options.seed, unheard=unheard)
            understood.append(await hearing.judge_hearing(services, title, spoken))
            transcribed.append(await hearing.judge_transcripts(services, title, spoken))
        called = await hearing.judge_functions(services, options.seed)
        seams = await judge.look_for_seams(services, options.directory, asked)
    figures = (
        judge.table(rows, seams) + "\n\n" + hearing.hearing_table(understood, transcribed, called)
    )
    print(figures)
    for answer in wrong:
        print(f"wrong text: {answer.asked} -> {answer.text}")
    for row in understood:
        for question, text in row.misunderstood:
            print(f"misunderstood: {question.manner.voice}: {question.asked} -> {text}")
    for written in transcribed:
        for question, text in written.wrong:
            print(f"transcribed: {question.manner.voice}: {question.asked} -> {text}")
    if options.pictures:
        drawn = [(name, answer.expected, answer.samples) for name, answer in pictured]
        draw_answers(options.pictures, drawn)
    if options.record:
        record_figures(options.directory, figures)
    return 0


def _make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.recipe",
        description="Make and judge a small Qwen3-Omni-MoE checkpoint that speaks.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="make the checkpoint; resumes what was stopped")
    build.add_argument("directory", type=Path, metavar="DIR", help="where to write it")
    build.add_argument("--work", type=Path, help="where training is kept (default: in /tmp)")
    build.add_argument(
        "--threads",
        type=int,
        default=1,
        help="torch threads (default: 1; more stall each other where cores are busy: "
        "train parts side by side with --only instead)",
    )
    build.add_argument("--seed", type=int, help="of data, weights and batches (default: 0)")
    for part in STEPS:
        build.add_argument(f"--{part}", type=int, metavar="STEPS", help="training steps")
    build.add_argument(
        "--only",
        choices=STEPS,
        help="train this and write nothing: to train parts in processes side by side",
    )
    build.add_argument(
        "--minutes", type=float, help="with --only, stop after so long, to go on another time"
    )
    build.add_argument(
        "--keep",
        type=Path,
        metavar="CHECKPOINT",
        help="take all parts from there but those that were trained here; lessons are added to "
        "those that its thinker had",
    )
    build.add_argument(
        "--now", action="store_true", help="write what the parts have learned so far"
    )
    judge = commands.add_parser("judge", help="ask it through the services and listen")
    judge.add_argument("directory", type=Path, metavar="DIR", help="the checkpoint")
    judge.add_argument("--repeated", type=int, default=REPEATED_SENTENCES, metavar="N")
    judge.add_argument("--seed", type=int, default=JUDGES_SEED, help="of the sentences to repeat")
    judge.add_argument("--every", type=int, default=1, metavar="N", help="each Nth exchange only")
    judge.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw spectrograms there")
    judge.add_argument("--record", action="store_true", help="write the table to the model card")
    return parser


if __name__ == "__main__":
    sys.exit(main())
