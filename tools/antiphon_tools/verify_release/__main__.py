"""Verify a released checkpoint: `make verify-release MODEL=DIR`.

The stages are compared with the reference at every position of its answers. They use the
reference's dtype and run on the same device. After that, the checkpoint is served and its spoken
answers are measured. The results are written to a JSON file and to a Markdown file, which are
updated after each section. They only contain figures, versions, and the questions and answers.

The exit status is 1 if there are doubts about a result, and 2 if nothing could be verified.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging

from antiphon.deployment.schema import StageConfig
from antiphon.errors import AntiphonError, FailedPrecondition, InvalidArgument
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.registry import pipeline_for, pipeline_of
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.runtime.engine import LoadedStage
from antiphon_tools.device import NoDevice, facts, require
from antiphon_tools.hub.deployment import local_model
from antiphon_tools.hub.settings import add_hub_options, hub_settings
from antiphon_tools.load.machine import machine
from antiphon_tools.verify_release import stages
from antiphon_tools.verify_release.answers import Truth
from antiphon_tools.verify_release.families import FAMILIES, Family, family_of
from antiphon_tools.verify_release.forced import (
    AUDIO,
    Inputs,
    as_inputs,
    code_figures,
    group_figures,
    latent_figures,
    question_input,
    sample_figures,
    text_figures,
)
from antiphon_tools.verify_release.questions import QUESTIONS, SENTENCES
from antiphon_tools.verify_release.report import ERROR, NOT_MEASURED, VerificationReport
from antiphon_tools.verify_release.served import (
    AnswerLimits,
    ServedAnswer,
    deployment_of,
    hearing_figures,
    speak_all,
    speed_figures,
    transcribe_all,
)
from antiphon_tools.verify_release.truth import (
    Amounts,
    Show,
    ask_reference,
    reference_name,
)

IN_DOUBT, NOTHING = 1, 2
CLEAR_GAP = 1.0
"""The minimum gap between the reference's two highest logits for which the stage must choose the
same token. In bfloat16, logits of about 30 are rounded by up to 0.1, and the sum of many rounding
errors stays below this value.
"""
LEAST_SNR_DB = 60.0
"""The minimum SNR for a decoder that runs in float32 on both sides."""
SLOTS = 8


def main(
    arguments: Sequence[str] | None = None, *, prog: str = "python -m antiphon_tools.verify_release"
) -> int:
    """Run the command line and return its exit status."""
    options = _options(arguments, prog)
    show = _progress()
    try:
        require(_device("--device", options.device))
        name = str(options.model)
        options.model, chosen = local_model(name, hub_settings(options))
        pipeline = pipeline_for(options.model, chosen)
        family = family_of(pipeline, options.model)
        _check(options, pipeline)
        options.out.mkdir(parents=True, exist_ok=True)
        known = machine() | facts(torch.device(options.device))
        report = VerificationReport(options.out / "report.json", known | {"model": Path(name).name})
        _verify(options, family, report, show)
    except (AntiphonError, NoDevice, OSError) as error:
        print(f"verify_release: {error}", file=sys.stderr)
        return NOTHING
    show(f"report: {report.markdown} and {report.path}")
    for sentence in report.doubts:
        show(f"in doubt: {sentence}")
    return IN_DOUBT if report.doubts else 0


def _check(options: argparse.Namespace, pipeline: Pipeline) -> None:
    """Raise an error for options that would otherwise only fail in a later section.

    The error is `InvalidArgument`, `NotFound` or `FailedPrecondition`.
    """
    if AUDIO not in {edge.name for edge in pipeline.edges}:
        raise InvalidArgument(
            f"{options.model}: only generates text, but verification compares speech; use a "
            "checkpoint with a talker",
            field="model",
        )
    _require("--reference-device", options.reference_device)
    for role, device in options.stage_device.items():
        if role not in pipeline.roles:
            raise InvalidArgument(
                f"--stage-device: unknown stage {role}; use one of: {', '.join(pipeline.roles)}"
            )
        _require("--stage-device", device)
    if options.transcriber is not None:
        transcriber = FAMILIES.get(pipeline_of(options.transcriber).name)
        if transcriber is None or not transcriber.hears:
            hearing = [name for name, each in FAMILIES.items() if each.hears]
            raise InvalidArgument(
                f"--transcriber: {options.transcriber} can't transcribe; use a checkpoint of "
                f"{' or '.join(hearing)}"
            )


def _require(option: str, name: str) -> None:
    """Raise `InvalidArgument` if tensors cannot be created on the device with this name."""
    try:
        require(_device(option, name))
    except NoDevice as error:
        raise InvalidArgument(f"{option}: {error}") from error


def _device(option: str, name: str) -> torch.device:
    try:
        return torch.device(name)
    except RuntimeError as error:
        raise InvalidArgument(
            f"{option}: unknown device {name!r}; use cuda, cuda:1 or cpu"
        ) from error


def _verify(
    options: argparse.Namespace, family: Family, report: VerificationReport, show: Show
) -> None:
    asked = Amounts(options.questions, options.tokens, options.frames)
    report.add("checkpoint", _checkpoint(options.model, family.pipeline))
    torch.set_num_threads(options.threads)
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    with _section(report, "stages", show):
        report.add("stages", _stages(options, family, show))
    if not options.served_only:
        _compare(options, family, asked, report, show)
    if not options.compared_only:
        with _section(report, "speed", show):
            _serve(options, family, asked, report, show)


def _checkpoint(model: Path, pipeline: Pipeline) -> dict[str, Any]:
    """Return the size of the checkpoint, as determined from the headers of its files.

    Names and shapes are checked later, when stages are loaded.
    """
    weights = Weights(model)
    sizes = weights.sizes("").values()
    return {
        "pipeline": pipeline.name,
        "tensors": len(weights.files),
        "numbers": sum(each.numbers for each in sizes),
        "gigabytes": round(sum(each.bytes for each in sizes) / 1e9, 3),
    }


def _stages(options: argparse.Namespace, family: Family, show: Show) -> dict[str, Any]:
    """Load each stage and release it again.

    This makes sure that errors about tensors are reported before the time-consuming sections begin.
    """
    dtype, seconds = _dtype(options), {}
    for role in family.roles:
        started = time.monotonic()
        _load(options, family.pipeline, show, role, dtype)
        seconds[f"{role}, loading time in seconds"] = round(time.monotonic() - started, 1)
        stages.give_memory_back()
    return seconds


def _dtype(options: argparse.Namespace) -> str:
    """Return the dtype that both sides use for the comparison."""
    chosen: str = options.dtype or ("bfloat16" if options.device.startswith("cuda") else "float32")
    return chosen


def _compare(
    options: argparse.Namespace,
    family: Family,
    asked: Amounts,
    report: VerificationReport,
    show: Show,
) -> None:
    """Compare text, codes and audio. Stages are loaded one at a time to save device memory."""
    dtype, pipeline = _dtype(options), family.pipeline
    truths: list[Truth] = []
    with _section(report, "reference", show):
        truths = _ask(options, family, asked, dtype, report, show)
    if not truths:
        return
    load = partial(_load, options, pipeline, show)
    inputs: list[Inputs | None] = [question_input(each.question) for each in truths]
    if family.text:
        inputs = [None] * len(truths)
        with _section(report, "text", show):
            inputs = _compare_text(load(family.text, dtype), family, truths, report, show)
    with _section(report, "codes", show):
        report.add(
            "codes", _compare_frames(load(family.codes, dtype), family, truths, inputs, show)
        )
    with _section(report, "audio", show):
        show(f"{family.audio}: {len(truths)} answers")
        decoder = load(family.audio, "float32")
        figures = sample_figures(decoder, pipeline, family.audio, truths, family.frames)
        report.add("audio", figures)
        snr = figures["least_snr_db"]
        if isinstance(snr, float) and snr < LEAST_SNR_DB:
            report.doubt(
                f"{family.audio}: samples differ from those of the reference (SNR {snr} dB)"
            )


def _compare_frames(
    stage: LoadedStage,
    family: Family,
    truths: Sequence[Truth],
    inputs: Sequence[Inputs | None],
    show: Show,
) -> dict[str, Any]:
    """Compare the stage that generates frames. Its preceding input always consists of the
    reference's frames.
    """
    show(f"{family.codes}: {sum(len(each.codes) for each in truths)} frames")
    if family.mixes:
        return group_figures(stage, family, truths, SLOTS)
    if family.draws_floats:
        return latent_figures(stage, family, truths, SLOTS)
    answers = [(each.codes, given) for each, given in zip(truths, inputs, strict=True) if given]
    return code_figures(stage, family.pipeline, family.codes, answers, SLOTS)


def _ask(
    options: argparse.Namespace,
    family: Family,
    asked: Amounts,
    dtype: str,
    report: VerificationReport,
    show: Show,
) -> list[Truth]:
    """Return the answers of the reference.

    Raises `FailedPrecondition` if there are none or if there is not enough memory.
    """
    started, device = time.monotonic(), options.reference_device
    show(f"reference: loading {reference_name(family)} on {device}")
    try:
        truths = ask_reference(family, options.model, asked, device, dtype, show)
    except torch.OutOfMemoryError as error:
        raise FailedPrecondition(
            f"the reference does not fit on {device}: use the host's memory with "
            f"--reference-device cpu, or leave the reference out with --served-only ({error})"
        ) from error
    if not truths:
        raise FailedPrecondition("the reference returned no answer that can be compared")
    figures = {
        "reference": reference_name(family),
        "dtype": "float32" if family.reads_aloud else dtype,
        "device": device,
        "answers": len(truths),
        "tokens": sum(len(each.ids) for each in truths),
        "frames": sum(len(each.codes) for each in truths),
        "seconds": round(time.monotonic() - started, 1),
    }
    report.add("reference", figures)
    return truths


def _compare_text(
    stage: LoadedStage,
    family: Family,
    truths: Sequence[Truth],
    report: VerificationReport,
    show: Show,
) -> list[Inputs | None]:
    """Compare the text stage and add its figures to the report.

    Returns the input of the next stage for each answer, or None if the stage ends the answer at a
    different position than the reference.
    """
    pipeline, text_role = family.pipeline, family.text
    show(f"{text_role}: {sum(len(each.ids) for each in truths)} positions")
    figures = text_figures(stage, pipeline, text_role, truths, SLOTS, family.speaking)
    report.add("text", figures)
    clear = [gap for gap in figures["gaps_where_not_equal"] if gap > CLEAR_GAP]
    if clear:
        report.doubt(
            f"{text_role}: at {len(clear)} positions, a different token was selected although "
            f"the reference's choice was clear (a gap of up to {max(clear):.2f} between logits)"
        )
    if family.mixes:
        return [question_input(each.question) for each in truths]
    return [as_inputs(pipeline, text_role, family.codes, stage, each) for each in truths]


def _load(
    options: argparse.Namespace, pipeline: Pipeline, show: Show, role: str, dtype: str
) -> LoadedStage:
    show(f"{role}: loading, which checks the names and shapes of the tensors")
    config = StageConfig(
        device=options.device,
        dtype=dtype,  # type: ignore[arg-type]  # one of the choices
        engine="torch",
        slots=SLOTS,
        context_limit=family_of(pipeline, options.model).context_of(role, options.context),
        threads=options.threads,
    )
    return stages.load(pipeline, role, options.model, config)


def _serve(
    options: argparse.Namespace,
    family: Family,
    asked: Amounts,
    report: VerificationReport,
    show: Show,
) -> None:
    roles = [each.role for each in family.pipeline.stages]
    devices = dict.fromkeys(roles, options.device) | options.stage_device
    texts = SENTENCES if family.reads_aloud else QUESTIONS
    deployment = deployment_of(options.model, family, devices, 2, options.context)
    hears = family.hears and options.transcriber is None
    tokens = 0 if family.reads_aloud else asked.tokens
    limits = AnswerLimits(tokens, options.spoken_frames // family.step, family.speaking)
    spoken = speak_all(
        deployment,
        texts[: asked.questions],
        limits,
        family=family,
        tokens=asked.tokens,
        hears=hears,
        show=show,
    )
    answers, heard = asyncio.run(spoken)
    report.add("speed", speed_figures(answers))
    if hears:
        report.add("hearing", hearing_figures(answers, heard, options.model.name))
    elif options.transcriber is None:
        remedy = "use --transcriber DIR with a checkpoint that supports audio, such as Qwen3-Omni"
        report.add("hearing", {NOT_MEASURED: f"{family.pipeline.name} can't transcribe; {remedy}"})
    else:
        with _section(report, "hearing", show):
            _transcribe(options, answers, report, show)


def _transcribe(
    options: argparse.Namespace,
    answers: Sequence[ServedAnswer],
    report: VerificationReport,
    show: Show,
) -> None:
    """Transcribe the answers with another checkpoint, after the first one has released its
    devices.
    """
    name = options.transcriber.name
    show(f"starting {name}")
    pipeline = pipeline_of(options.transcriber)
    roles = [each.role for each in pipeline.stages]
    devices = dict.fromkeys(roles, options.device)
    family = family_of(pipeline, options.transcriber)
    deployment = deployment_of(options.transcriber, family, devices, 2, options.context)
    recordings = [each.wav for each in answers]
    transcribing = transcribe_all(deployment, family, recordings, tokens=options.tokens, show=show)
    heard = asyncio.run(transcribing)
    report.add("hearing", hearing_figures(answers, heard, name))


@contextmanager
def _section(report: VerificationReport, section: str, show: Show) -> Iterator[None]:
    """If the section ends with an error, record the error and continue with the next section."""
    try:
        yield
    except (AntiphonError, OSError, RuntimeError) as error:
        show(f"{section}: {error}")
        report.add(section, {ERROR: str(error)})
    finally:
        stages.give_memory_back()


def _progress() -> Show:
    started = time.monotonic()

    def show(line: str) -> None:
        print(f"[{time.monotonic() - started:6.1f} s] {line}", flush=True)

    return show


def _stage_device(text: str) -> tuple[str, str]:
    role, _, device = text.partition("=")
    if not role or not device:
        raise argparse.ArgumentTypeError(
            f"{text!r}: must have the form ROLE=DEVICE, such as talker=cuda:1"
        )
    return role, device


def _amount(text: str) -> int:
    """Parse a positive integer."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be an integer of at least 1")
    return int(text)


def _options(arguments: Sequence[str] | None, prog: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=prog,
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--model",
        required=True,
        metavar="MODEL",
        help=("checkpoint directory, or ORG/NAME on the hub"),
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/verify-release"),
        metavar="DIR",
        help="directory for report.json and report.md (out/verify-release)",
    )
    parser.add_argument("--device", default="cuda", help="device of the stages (cuda); cpu is slow")
    parser.add_argument(
        "--stage-device",
        type=_stage_device,
        nargs="+",
        default=[],
        metavar="ROLE=DEVICE",
        help="devices of individual stages while all stages are running",
    )
    parser.add_argument(
        "--reference-device",
        metavar="DEVICE",
        help=("device of the reference (default: that of the stages)"),
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="dtype of both sides for the comparison (bfloat16; float32 on a CPU)",
    )
    parser.add_argument(
        "--transcriber",
        type=Path,
        metavar="DIR",
        help="checkpoint that transcribes the answers (default: the same one, if it can)",
    )
    parser.add_argument(
        "--questions", type=int, default=4, choices=range(1, len(QUESTIONS) + 1), metavar="N"
    )
    parser.add_argument(
        "--tokens",
        type=_amount,
        default=48,
        metavar="N",
        help=("maximum number of tokens per answer (48)"),
    )
    parser.add_argument(
        "--frames",
        type=_amount,
        default=48,
        metavar="N",
        help=("maximum number of codec frames to compare (48)"),
    )
    parser.add_argument(
        "--spoken-frames",
        type=_amount,
        default=400,
        metavar="N",
        help="maximum number of tokens per answer of the running deployment (400)",
    )
    parser.add_argument(
        "--context",
        type=_amount,
        default=2048,
        metavar="N",
        help=("number of positions per segment (2048)"),
    )
    parser.add_argument(
        "--threads", type=_amount, default=1, help=("number of torch threads on the host (1)")
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--served-only", action="store_true", help=("skip the comparison with the reference")
    )
    only.add_argument("--compared-only", action="store_true", help="skip the spoken answers")
    add_hub_options(parser)
    options = parser.parse_args(arguments)
    options.reference_device = options.reference_device or options.device
    options.stage_device = dict(options.stage_device)
    return options


if __name__ == "__main__":
    sys.exit(main())
