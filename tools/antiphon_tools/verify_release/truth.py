"""Generates the reference's answers.

The reference is transformers or, if transformers has no class for the model, antiphon in float32.
Every stage is later given these answers as its preceding output, so that a single difference
doesn't make the rest of an answer incomparable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE as OMNI3
from antiphon.runtime.checkpoint.weights import Weights
from antiphon.wire.logprobs import logprobs_from_tensors
from antiphon_testkit.conversations import conversation
from antiphon_testkit.drive_engine import SegmentOutput
from antiphon_tools.verify_release import stages
from antiphon_tools.verify_release.answers import KEPT_LOGPROBS, Truth
from antiphon_tools.verify_release.families import Family
from antiphon_tools.verify_release.forced import (
    TEXT,
    answer,
    greedy,
    hear,
    made_codes,
    question_input,
)
from antiphon_tools.verify_release.questions import QUESTIONS, SENTENCES

Show = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Amounts:
    """The number of questions and the maximum numbers of tokens and frames in an answer."""

    questions: int
    tokens: int
    frames: int


class ScoreKeeper:
    """A logits processor that stores the most likely tokens of every step, without changing the
    scores.
    """

    def __init__(self) -> None:
        self.ids: list[npt.NDArray[np.int32]] = []
        self.logprobs: list[npt.NDArray[np.float32]] = []
        self.gaps: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Store the most likely tokens for scores of shape [1, vocabulary]."""
        top = scores[0].float().topk(KEPT_LOGPROBS)
        logprobs = top.values - scores[0].float().logsumexp(-1)
        self.ids.append(top.indices.cpu().numpy().astype(np.int32))
        self.logprobs.append(logprobs.cpu().numpy())
        self.gaps.append(float(top.values[0] - top.values[1]))
        return scores


def reference_name(family: Family) -> str:
    """Return a description of the reference."""
    if family.reads_aloud:
        return f"antiphon in float32 (transformers has no class for {family.pipeline.name})"
    return f"transformers, {family.pipeline.architectures[-1]}"


def ask_reference(
    family: Family, model: Path, asked: Amounts, device: str, dtype: str, show: Show
) -> list[Truth]:
    """Return the reference's answers with greedy decoding. Afterwards, its memory is released.

    Answers that the reference can't speak, such as an answer that consists of a single token, are
    reported and skipped.
    """
    if family.reads_aloud:
        return _speak(family, model, asked, device, show)
    given = getattr(torch, dtype)
    make = _omni3 if family.pipeline is OMNI3 else _omni25
    ask = make(model, asked, device, given)
    truths = []
    for number, question in enumerate(QUESTIONS[: asked.questions], 1):
        show(f"reference: answer {number} of {asked.questions}")
        try:
            truths.append(ask(question))
        # transformers raises these errors for answers that it cannot speak.
        except (RuntimeError, IndexError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            show(f"reference: no answer to {question!r}: {error}")
    del ask
    stages.give_memory_back()
    return truths


def _omni3(model: Path, asked: Amounts, device: str, dtype: torch.dtype) -> Callable[[str], Truth]:
    from antiphon_testkit.qwen3_omni.reference import Case, Reference

    reference = Reference(model, device, dtype=dtype)
    _read_in_float32(reference.model.code2wav, model, "code2wav.")

    def answer(question: str) -> Truth:
        kept = ScoreKeeper()
        case = Case(
            conversation(("user", question)),
            thinker_max_tokens=asked.tokens,
            talker_max_tokens=asked.frames + 1,
        )
        made = reference.run(case, thinker_processors=[kept])
        return _truth(question, kept, made.text_ids, made.codes, made.waveform)

    return answer


def _omni25(model: Path, asked: Amounts, device: str, dtype: torch.dtype) -> Callable[[str], Truth]:
    from antiphon_testkit.qwen2_5_omni.reference import Omni25Case, Omni25Reference

    reference = Omni25Reference(model, device=device, dtype=dtype)
    _read_in_float32(reference.model.token2wav, model, "token2wav.")

    def answer(question: str) -> Truth:
        kept = ScoreKeeper()
        case = Omni25Case(
            conversation(("user", question)),
            thinker_max_tokens=asked.tokens,
            talker_max_tokens=asked.frames + 1,
        )
        made = reference.run(case, thinker_processors=[kept])
        return _truth(question, kept, made.text_ids, made.codes.reshape(-1, 1), made.waveform)

    return answer


def _read_in_float32(decoder: Any, model: Path, prefix: str) -> None:
    """Load the weights of the reference's decoder in float32.

    Decoders are served in float32, and loading the complete model has already rounded their
    weights.
    """
    decoder.float()
    weights = Weights(model)
    with weights.open() as reader:
        stored = {
            name.removeprefix(prefix): reader.read(name)
            for name in weights.files
            if name.startswith(prefix)
        }
        # Computed buffers are either not stored, or stored without a corresponding entry in the
        # module.
        decoder.load_state_dict(stored, strict=False)


def _truth(
    question: str,
    kept: ScoreKeeper,
    ids: npt.NDArray[np.int32],
    codes: npt.NDArray[np.int32],
    samples: npt.NDArray[np.float32],
) -> Truth:
    count = len(ids)
    return Truth(
        question,
        ids,
        np.stack(kept.ids[:count]),
        np.stack(kept.logprobs[:count]),
        np.array(kept.gaps[:count], np.float32),
        codes.astype(np.uint16),
        samples.astype(np.float32),
    )


def _speak(family: Family, model: Path, asked: Amounts, device: str, show: Show) -> list[Truth]:
    """Return sentences that antiphon reads aloud in float32.

    On a CPU, this output is identical to the recorded output of the vendor's code.
    """
    config = StageConfig(device=device, dtype="float32", engine="torch", slots=1)
    pipeline, sentences = family.pipeline, SENTENCES[: asked.questions]
    stage = stages.load(pipeline, family.codes, model, config)
    most = asked.frames if family.draws_floats else asked.frames + 1
    truths = []
    for number, sentence in enumerate(sentences, 1):
        show(f"reference: codes {number} of {len(sentences)}")
        settings = greedy(
            stage,
            pipeline,
            family.codes,
            most,
            top_logprobs=KEPT_LOGPROBS if family.mixes else None,
            options=family.speaking,
        )
        output = answer(stage.engine, settings, question_input(sentence))
        truths.append(_spoken(family, model, sentence, output))
    del stage
    stages.give_memory_back()
    show("reference: audio")
    decoder = stages.load(pipeline, family.audio, model, config)
    heard = [
        replace(each, samples=hear(decoder, pipeline, family.audio, each.codes, edge=family.frames))
        for each in truths
        if len(each.codes)
    ]
    del decoder
    stages.give_memory_back()
    return heard


def _spoken(family: Family, model: Path, sentence: str, output: SegmentOutput) -> Truth:
    """Return an answer without its samples."""
    codes, unheard = made_codes(output, family.frames), np.empty(0, np.float32)
    if not family.mixes:
        none = np.empty((0, KEPT_LOGPROBS), np.float32)
        ids = none.astype(np.int32)
        return Truth(sentence, ids[:, 0], ids, none, none[:, 0], codes, unheard)
    drawn = output.tensors(TEXT)["ids"].astype(np.int32)
    spoken = drawn == stages.frames_id(model)
    before = family.step * (np.cumsum(spoken) - spoken).astype(np.int32)
    # Frames after the end of speech are not reported, so positions after them cannot be compared.
    count = int(np.count_nonzero(before <= len(codes)))
    top_ids = np.full((count, KEPT_LOGPROBS), -1, np.int32)
    logprobs = np.full((count, KEPT_LOGPROBS), -np.inf, np.float32)
    entries = [token for each in output.emitted for token in logprobs_from_tensors(each.tensors)]
    place = 0
    for token in entries:
        # Tokens without text have no entry.
        while place < count and drawn[place] != token.token_id:
            place += 1
        if place == count:
            break
        top = token.top[:KEPT_LOGPROBS]
        top_ids[place, : len(top)] = [each.token_id for each in top]
        logprobs[place, : len(top)] = [each.logprob for each in top]
        place += 1
    with np.errstate(invalid="ignore"):
        gaps = logprobs[:, 0] - logprobs[:, 1]
    return Truth(sentence, drawn[:count], top_ids, logprobs, gaps, codes, unheard, before[:count])
