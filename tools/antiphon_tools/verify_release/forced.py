"""Compares stages with the reference, given the reference's answer up to each position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.errors import Internal
from antiphon.pipelines.graph import Pipeline
from antiphon.runtime.engine import Engine, InputChunk, LoadedStage, SegmentSettings
from antiphon.values.conversation import to_tensors
from antiphon.values.history import History
from antiphon.values.sampling import SamplingRequest, stream_key
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon.wire.logprobs import logprobs_from_tensors
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput, run_segments
from antiphon_tools.verify_release.answers import Frames, Truth
from antiphon_tools.verify_release.families import CODES, Family

TEXT, AUDIO = "text", "audio"
SEED = 0

Inputs = Sequence[InputChunk]


def answer(engine: Engine, settings: SegmentSettings, inputs: Inputs) -> SegmentOutput:
    """Run a single segment until it ends. Raises the error if it fails."""
    return answer_all(engine, [(settings, inputs)], 1)[0]


def answer_all(
    engine: Engine, asked: Sequence[tuple[SegmentSettings, Inputs]], slots: int
) -> list[SegmentOutput]:
    """Run segments until they end. As many segments run concurrently as there are slots.

    Raises the error if a segment fails.
    """
    outputs: list[SegmentOutput] = []
    for start in range(0, len(asked), slots):
        together = {
            SegmentKey(f"verify {start + index}", 0): each
            for index, each in enumerate(asked[start : start + slots])
        }
        made = run_segments(engine, together)
        outputs += [made[key] for key in together]
    for output in outputs:
        if output.failed is not None:
            raise output.failed.error
        if output.completed is None:
            raise Internal("a segment did not end")
    return outputs


def question_input(question: str) -> list[InputChunk]:
    """Return a user message as input. It contains a question or text to speak."""
    tensors = to_tensors(conversation(("user", question)))
    return [InputChunk("input", 0, tensors, True, FinishReason.STOP)]


def greedy(
    stage: LoadedStage,
    pipeline: Pipeline,
    role: str,
    most: int,
    *,
    voice: str = "",
    history: History | None = None,
    top_logprobs: int | None = None,
    options: Mapping[str, str | float] | None = None,
) -> SegmentSettings:
    """Return the settings of a segment with greedy decoding and up to `most` draws."""
    edges = frozenset(edge.name for edge in pipeline.outputs(role)) - {"tool_calls"}
    wanted = SamplingRequest(temperature=0.0, max_tokens=most, top_logprobs=top_logprobs)
    sampling = stage.facts.default_sampling.with_request(wanted)
    return SegmentSettings(
        voice or next(iter(stage.facts.voices), ""),
        sampling,
        edges,
        options={} if options is None else dict(options),
        history=history,
    )


def made_codes(output: SegmentOutput, edge: str = CODES) -> Frames:
    """Return the frames of a segment, as a uint16 or float32 array of shape [T, groups]."""
    frames = [each.tensors[edge] for each in output.emitted if edge in each.tensors]
    return np.concatenate(frames) if frames else np.empty((0, 0), np.uint16)


def hear(
    stage: LoadedStage,
    pipeline: Pipeline,
    role: str,
    codes: Frames,
    voice: str = "",
    edge: str = CODES,
) -> npt.NDArray[np.float32]:
    """Return the samples that a decoder generates from all codes at once."""
    edges = frozenset(edge.name for edge in pipeline.outputs(role))
    chosen = voice or next(iter(stage.facts.voices), "")
    # A decoder that starts from noise derives it from the seed of the request.
    sampling = replace(stage.facts.default_sampling, seed=stream_key(SEED, role))
    settings = SegmentSettings(chosen, sampling, edges)
    inputs = [InputChunk(edge, 0, {edge: codes}, True, FinishReason.STOP)]
    samples = answer(stage.engine, settings, inputs).tensors(AUDIO)["samples"]
    return np.asarray(samples, np.float32)


def text_figures(
    stage: LoadedStage,
    pipeline: Pipeline,
    role: str,
    truths: Sequence[Truth],
    slots: int,
    options: Mapping[str, str | float] | None = None,
) -> dict[str, Any]:
    """Compare a text stage with the reference at every position of its answers.

    The log probabilities of the reference's most likely tokens are compared up to the first
    position at which the stage chooses a different token by itself.
    """
    chosen = equal = 0
    missed: list[float] = []
    differences: list[float] = []
    for truth in truths:
        inputs = question_input(truth.question)
        count = len(truth.ids)
        asked = [
            (
                greedy(
                    stage,
                    pipeline,
                    role,
                    place + 1,
                    history=truth.before(place),
                    options=options,
                ),
                inputs,
            )
            for place in range(count)
        ]
        outputs = answer_all(stage.engine, asked, slots)
        for place, output in enumerate(outputs):
            ids = output.tensors(TEXT)["ids"]
            same = len(ids) > place and ids[place] == truth.ids[place]
            chosen, equal = chosen + 1, equal + bool(same)
            if not same and not np.isnan(truth.gaps[place]):
                missed.append(float(truth.gaps[place]))
        wanted = truth.top_ids.shape[1]
        free = greedy(stage, pipeline, role, count, top_logprobs=wanted, options=options)
        output = answer(stage.engine, free, inputs)
        differences += _logprob_differences(output, truth)
    return {
        "places": chosen,
        "equal": equal,
        "agreement": round(equal / max(chosen, 1), 4),
        "gaps_where_not_equal": sorted(round(each, 4) for each in missed)[::-1],
        "logprobs_compared": len(differences),
        "largest_logprob_difference": max(differences, default=0.0),
        "mean_logprob_difference": float(np.mean(differences)) if differences else 0.0,
    }


def _logprob_differences(output: SegmentOutput, truth: Truth) -> list[float]:
    found: list[float] = []
    place, own = 0, output.tensors(TEXT)["ids"]
    for event in output.emitted:
        for token in logprobs_from_tensors(event.tensors):
            # Tokens without text have no entry, so the following entries belong to other positions.
            if token.token_id != own[place]:
                return found
            ours = {each.token_id: each.logprob for each in token.top}
            theirs = zip(truth.top_ids[place].tolist(), truth.top_logprobs[place], strict=True)
            found += [abs(ours[id_] - float(each)) for id_, each in theirs if id_ in ours]
            if token.token_id != truth.ids[place]:
                return found
            place += 1
    return found


def code_figures(
    stage: LoadedStage,
    pipeline: Pipeline,
    role: str,
    answers: Sequence[tuple[Frames, Inputs]],
    slots: int,
) -> dict[str, Any]:
    """Compare a stage that generates codes with the reference, at every frame of its answers.

    If one code in a frame differs, the codes after it are conditioned on a different code. For this
    reason, `equal_codes` only counts the codes before the first difference.
    """
    frames = first = leading = total = 0
    for codes, inputs in answers:
        groups = codes.shape[1]
        asked = []
        for known in range(len(codes)):
            # The last draw within a limit does not produce a frame.
            settings = greedy(
                stage,
                pipeline,
                role,
                known + 2,
                history=History(frames=codes[:known].astype(np.uint16)),
            )
            asked.append((settings, inputs))
        for known, output in enumerate(answer_all(stage.engine, asked, slots)):
            made = made_codes(output)
            frames, total = frames + 1, total + groups
            if len(made) <= known:
                continue
            same = made[known] == codes[known]
            first += bool(same[0])
            leading += _leading(same)
    return _agreement(frames, first, leading, total)


def group_figures(
    stage: LoadedStage, family: Family, truths: Sequence[Truth], slots: int
) -> dict[str, Any]:
    """Compare a stage that generates text and frames with the reference, at every group of frames.

    A group's frames are drawn together, but their codes are drawn one after another, like the codes
    within a frame.
    """
    pipeline, role, step = family.pipeline, family.codes, family.step
    groups = first = leading = total = 0
    for truth in truths:
        assert truth.frames_before is not None
        known = range(0, len(truth.codes), step)
        # The token of a group is the last one that is preceded by this number of known frames.
        places = [int(np.flatnonzero(truth.frames_before == each)[-1]) for each in known]
        asked = [
            (
                greedy(
                    stage,
                    pipeline,
                    role,
                    # The last draw within a limit does not produce frames.
                    place + 2,
                    history=truth.before(place),
                    options=family.speaking,
                ),
                question_input(truth.question),
            )
            for place in places
        ]
        outputs = answer_all(stage.engine, asked, slots)
        for start, output in zip(known, outputs, strict=True):
            wanted = truth.codes[start : start + step].reshape(-1)
            made = made_codes(output)[start : start + step].reshape(-1)
            groups, total = groups + 1, total + len(wanted)
            if len(made) == len(wanted):
                same = made == wanted
                first += bool(same[0])
                leading += _leading(same)
    return _agreement(step * groups, first, leading, total, groups)


def latent_figures(
    stage: LoadedStage, family: Family, truths: Sequence[Truth], slots: int
) -> dict[str, Any]:
    """Compare float frames with the reference's frames, given the reference's preceding frames.

    Both sides use the same noise.
    """
    pipeline, role, edge = family.pipeline, family.codes, family.frames
    ours: list[Frames] = []
    theirs: list[Frames] = []
    for truth in truths:
        asked = []
        for known in range(len(truth.codes)):
            history = History(latents=truth.codes[:known].astype(np.float32))
            settings = greedy(
                stage, pipeline, role, known + 1, history=history, options=family.speaking
            )
            asked.append((settings, question_input(truth.question)))
        for known, output in enumerate(answer_all(stage.engine, asked, slots)):
            made = made_codes(output, edge)
            if len(made) > known:
                ours.append(made[known])
                theirs.append(truth.codes[known])
    largest, least = _distance(ours, theirs)
    frames = sum(len(each.codes) for each in truths)
    return {
        "frames": frames,
        "frames_made": len(ours),
        "largest_error": largest,
        "least_snr_db": least,
    }


def _leading(same: npt.NDArray[np.bool_]) -> int:
    return len(same) if same.all() else int(same.argmin())


def _agreement(
    frames: int, first: int, leading: int, total: int, draws: int | None = None
) -> dict[str, Any]:
    return {
        "frames": frames,
        "first_code_agreement": round(first / max(frames if draws is None else draws, 1), 4),
        "equal_codes": round(leading / max(total, 1), 4),
    }


def _distance(ours: Sequence[Any], theirs: Sequence[Any]) -> tuple[float, float | str]:
    """Return the maximum error and the minimum SNR in dB or "equal"."""
    errors: list[float] = []
    snrs: list[float] = []
    for own, other in zip(ours, theirs, strict=True):
        noise = own.astype(np.float64) - other
        errors.append(float(np.abs(noise).max(initial=0.0)))
        power = float(np.square(other.astype(np.float64)).sum())
        if noise.any():
            snrs.append(float(10 * np.log10(power / np.square(noise).sum())))
    return max(errors, default=0.0), round(min(snrs), 1) if snrs else "equal"


def sample_figures(
    stage: LoadedStage,
    pipeline: Pipeline,
    role: str,
    truths: Sequence[Truth],
    edge: str = CODES,
) -> dict[str, Any]:
    """Compare the samples of a decoder with the reference's samples for the same codes."""
    spoken = [each for each in truths if len(each.codes)]
    made = [hear(stage, pipeline, role, each.codes, edge=edge) for each in spoken]
    for ours, truth in zip(made, spoken, strict=True):
        if len(ours) < len(truth.samples):
            raise Internal(f"{role}: {len(ours)} samples of {len(truth.samples)}")
    cut = [ours[: len(truth.samples)] for ours, truth in zip(made, spoken, strict=True)]
    largest, least = _distance(cut, [each.samples for each in spoken])
    return {"answers": len(spoken), "largest_error": largest, "least_snr_db": least}


def as_inputs(
    pipeline: Pipeline, text_role: str, code_role: str, stage: LoadedStage, truth: Truth
) -> list[InputChunk] | None:
    """Return the input of the code stage for the reference's complete text.

    Returns None if the text stage ends the text at a different position.
    """
    count = len(truth.ids)
    settings = greedy(stage, pipeline, text_role, count, history=truth.before(count))
    output = answer(stage.engine, settings, question_input(truth.question))
    if output.tensors(TEXT)["ids"].tolist() != truth.ids.tolist():
        return None
    return output.inputs_of(pipeline, code_role)
