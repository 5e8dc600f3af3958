"""Verifies that the engines generate the same output on a device as the reference on a CPU.

In float32, text tokens and codes must be identical to Hugging Face's, and audio must be within
1e-4, regardless of CUDA graphs and launching ahead. In bfloat16, rounding on both sides leads to
different choices. Therefore, both are given the same independent rows, and their states are
compared with the states in float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec.structs import replace

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import CODE2WAV, PIPELINE, TALKER, THINKER
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings
from antiphon.values.conversation import to_tensors
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_services.lm.attention import Span
from antiphon_services.lm.decoder import Decoder
from antiphon_services.lm.kv_cache import KVCache
from antiphon_services.qwen3_omni.code2wav import load as code2wav
from antiphon_services.qwen3_omni.talker import load as talker
from antiphon_services.qwen3_omni.thinker import load as thinker
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput, run_segments
from antiphon_testkit.qwen3_omni.reference import Case, Reference
from antiphon_testkit.qwen3_omni.tiny_checkpoint import SMALL, build_tiny_checkpoint
from benchmarks.gpu.report import HOLDS, Figures, Row
from benchmarks.gpu.scale import EAGER, Way, bucketing_of, precision_of, with_graphs

QUESTIONS = ("day one", "what is it?", "and then?", "how many are there", "one more", "why")
# The number of cases, tokens and frames. On a CPU, there are only a few, because other tests cover
# it.
AMOUNTS = {"cuda": (3, 16, 12), "cpu": (1, 5, 4)}
LEAST_MARGIN = 1e-4
AUDIO_TOLERANCE = 1e-4
CONTEXT = 256
# Of the rows for which states are compared, the first ones are processed at once, and the others
# one by one.
PREFILLED, DECODED = 40, 16
# The maximum error of the engine in bfloat16 relative to float32, as a multiple of Hugging Face's
# error.
MOST_TIMES = 1.5


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a question."""

    text_ids: npt.NDArray[Any]
    codes: npt.NDArray[Any]
    samples: npt.NDArray[Any]


@dataclass(slots=True)
class Lab:
    """A tiny checkpoint, and the reference's answers to questions whose choices are not close."""

    directory: Path
    cases: int
    tokens: int
    frames: int
    answers: dict[str, Answer] = field(default_factory=dict)
    eager: dict[str, list[Answer]] = field(default_factory=dict)

    def ask_reference(self) -> Figures:
        """Run Hugging Face's model on the CPU in float32."""
        build_tiny_checkpoint(self.directory, SMALL)
        reference, margins = Reference(self.directory), []
        for question in QUESTIONS:
            if len(self.answers) == self.cases:
                break
            asked = conversation(("user", question))
            made = reference.run(
                Case(asked, thinker_max_tokens=self.tokens, talker_max_tokens=self.frames)
            )
            if made.min_margin >= LEAST_MARGIN:
                self.answers[question] = Answer(made.text_ids, made.codes, made.waveform)
                margins.append(made.min_margin)
        enough = len(self.answers) == self.cases
        return {"questions": list(self.answers), "margins": margins, HOLDS: enough}


def fidelity_rows(device: torch.device, directory: Path) -> list[Row]:
    """Return the rows, starting with the reference with which the others are compared."""
    lab = Lab(directory / "checkpoint", *AMOUNTS[device.type])
    rows = [Row("reference, float32 on the CPU", lab.ask_reference, setup=True)]
    ways = [EAGER, *with_graphs(device), Way(False, launch_ahead=True)]
    rounded = ways if device.type == "cuda" else ways[:1]
    rows += [
        Row(f"{dtype}, {way}", partial(_compare, lab, device, dtype, way))
        for dtype, compared in (("float32", ways), ("bfloat16", rounded))
        for way in compared
    ]
    rows += [
        Row(f"bfloat16, states of the {role}", partial(_states, lab, device, role))
        for role in (THINKER, TALKER)
    ]
    return rows


def _compare(lab: Lab, device: torch.device, dtype: str, way: Way) -> Figures:
    """Run all questions concurrently through the three engines."""
    with precision_of(dtype):
        made = _answers(lab, device, dtype, way)
    truth = list(lab.answers.values())
    told: Figures = {
        "text_equal": _equal_share([each.text_ids for each in made], [t.text_ids for t in truth]),
        "codes_equal": _equal_share([each.codes for each in made], [t.codes for t in truth]),
    }
    if first := lab.eager.get(dtype):
        # In bfloat16, graphs pad rows, which may lead to different kernels.
        told["codes_equal_to_eager"] = _equal_share(
            [each.codes for each in made], [each.codes for each in first]
        )
    if way == EAGER:
        lab.eager[dtype] = made
    if dtype == "float32":
        error = max(
            _audio_error(ours.samples, theirs.samples)
            for ours, theirs in zip(made, truth, strict=True)
        )
        told |= {"audio_error": error, "audio_tolerance": AUDIO_TOLERANCE}
        equal = told["text_equal"] == told["codes_equal"] == 1.0
        told[HOLDS] = equal and error <= AUDIO_TOLERANCE
    return told


def _audio_error(ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> float:
    # The reference's single decode ends slightly before its last frame.
    if len(ours) < len(theirs):
        return float("inf")
    return float(np.abs(ours[: len(theirs)] - theirs).max(initial=0.0))


def _equal_share(ours: Sequence[npt.NDArray[Any]], theirs: Sequence[npt.NDArray[Any]]) -> float:
    """Return the fraction of positions that match before the first difference in each sequence."""
    same = total = 0
    for mine, true in zip(ours, theirs, strict=True):
        total += max(len(mine), len(true))
        for one, other in zip(mine, true, strict=False):
            if not np.array_equal(one, other):
                break
            same += 1
    return round(same / total, 4) if total else 1.0


def _answers(lab: Lab, device: torch.device, dtype: str, way: Way) -> list[Answer]:
    common = StageConfig(
        device=str(device),
        dtype=dtype,  # type: ignore[arg-type]
        slots=max(2, lab.cases),
        context_limit=CONTEXT,
        engine="torch",
    )
    config = replace(common, **way.settings)
    # A CPU has no graphs, so the functions run without them.
    bucketing = bucketing_of(way, device)
    texts = _run(
        thinker.load(lab.directory, config, bucketing),
        THINKER,
        {question: [_input(question)] for question in lab.answers},
        lab.tokens,
    )
    codes = _run(
        talker.load(lab.directory, config, bucketing),
        TALKER,
        {name: texts[name].inputs_of(PIPELINE, TALKER) for name in texts},
        lab.frames,
    )
    samples = _run(
        code2wav.load(lab.directory, replace(common, **way.audio_settings), bucketing),
        CODE2WAV,
        {name: codes[name].inputs_of(PIPELINE, CODE2WAV) for name in codes},
        0,
    )
    return [
        Answer(
            texts[name].tensors("text")["ids"],
            codes[name].tensors("codes")["codes"],
            samples[name].tensors("audio")["samples"],
        )
        for name in lab.answers
    ]


def _input(question: str) -> InputChunk:
    tensors = to_tensors(conversation(("user", question)))
    return InputChunk("input", 0, tensors, True, FinishReason.STOP)


def _run(
    stage: LoadedStage, role: str, inputs: Mapping[str, Sequence[InputChunk]], tokens: int
) -> dict[str, SegmentOutput]:
    """Run all inputs concurrently with greedy decoding. Raises the error if one fails."""
    edges = frozenset(edge.name for edge in PIPELINE.outputs(role)) - {"tool_calls"}
    wanted = SamplingRequest(temperature=0.0, max_tokens=tokens) if tokens else SamplingRequest()
    settings = SegmentSettings("", stage.facts.default_sampling.with_request(wanted), edges)
    keys = {name: SegmentKey(name, 0) for name in inputs}
    outputs = run_segments(stage.engine, {keys[name]: (settings, inputs[name]) for name in inputs})
    for output in outputs.values():
        if output.failed is not None:
            raise output.failed.error
    return {name: outputs[keys[name]] for name in inputs}


@torch.inference_mode()
def _states(lab: Lab, device: torch.device, role: str) -> Figures:
    """Compare the decoder's states for given rows between the engine and Hugging Face, by
    precision.
    """
    from transformers import Qwen3OmniMoeForConditionalGeneration

    whole: Any = Qwen3OmniMoeForConditionalGeneration.from_pretrained(lab.directory)
    part = whole.thinker if role == THINKER else whole.talker
    module: Any = part.model.to(device).eval()
    generator = torch.Generator().manual_seed(0)
    width = module.norm.weight.shape[0]
    rows = torch.randn(PREFILLED + DECODED, width, generator=generator).bfloat16().to(device)
    with precision_of("float32"):
        exact = _theirs(module, rows.float())
        ours_exact = _ours(module, rows.float(), role)
    module.to(torch.bfloat16)
    theirs, ours = _theirs(module, rows), _ours(module, rows, role)
    told = {
        "float32_error": _error(ours_exact, exact),
        "engine_error": _error(ours, exact),
        "hugging_face_error": _error(theirs, exact),
        "between": _error(ours, theirs),
    }
    holds = told["engine_error"] <= MOST_TIMES * told["hugging_face_error"]
    return {**told, HOLDS: holds and told["float32_error"] < 1e-4}


def _theirs(module: Any, rows: torch.Tensor) -> torch.Tensor:
    states: torch.Tensor = module(inputs_embeds=rows[None], use_cache=False).last_hidden_state
    return states[0]


def _ours(module: Any, rows: torch.Tensor, role: str) -> torch.Tensor:
    """Process some rows at once, like a prompt, and then the others one by one."""
    invariant = role == TALKER
    decoder = Decoder(module, 300, batch_invariant=invariant, exact_norms=not invariant)
    cache = KVCache(decoder.shape, 1, 300)
    parts = []
    for start, stop in _steps(len(rows)):
        plan = decoder.plan(cache, [Span(0, start, stop - start)])
        states, _ = decoder.append(rows[start:stop], plan)
        parts.append(states[: stop - start].clone())
    return torch.cat(parts)


def _steps(count: int) -> list[tuple[int, int]]:
    return [(0, PREFILLED), *((each, each + 1) for each in range(PREFILLED, count))]


def _error(states: torch.Tensor, truth: torch.Tensor) -> float:
    exact = truth.double()
    return float((states.double() - exact).norm() / exact.norm())
