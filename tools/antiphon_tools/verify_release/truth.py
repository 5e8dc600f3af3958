"""What the reference answers: transformers' own classes, or antiphon's float32 where it has none.

The answers of a question are given to every stage later, so that one early difference does not
make the rest of the answer incomparable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.graph import Pipeline
from antiphon.pipelines.qwen3_omni import PIPELINE as OMNI3
from antiphon.pipelines.qwen3_tts import PIPELINE as TTS
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_testkit.conversations import conversation
from antiphon_tools.verify_release import stages
from antiphon_tools.verify_release.answers import KEPT_LOGPROBS, Truth
from antiphon_tools.verify_release.forced import (
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
    """How many questions are asked, and the most tokens and frames of an answer."""

    questions: int
    tokens: int
    frames: int


class ScoreKeeper:
    """A logits processor that keeps the likeliest ids of every step; changes nothing."""

    def __init__(self) -> None:
        self.ids: list[npt.NDArray[np.int32]] = []
        self.logprobs: list[npt.NDArray[np.float32]] = []
        self.gaps: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Keep those of scores [1, vocabulary]."""
        top = scores[0].float().topk(KEPT_LOGPROBS)
        logprobs = top.values - scores[0].float().logsumexp(-1)
        self.ids.append(top.indices.cpu().numpy().astype(np.int32))
        self.logprobs.append(logprobs.cpu().numpy())
        self.gaps.append(float(top.values[0] - top.values[1]))
        return scores


def reference_name(pipeline: Pipeline) -> str:
    """What the answers come from."""
    if pipeline is TTS:
        return "antiphon in float32 (transformers has no class for Qwen3-TTS)"
    return f"transformers, {pipeline.architectures[-1]}"


def ask_reference(
    pipeline: Pipeline, model: Path, asked: Amounts, device: str, dtype: str, show: Show
) -> list[Truth]:
    """Its answers, greedily. Its memory is free again when they are returned.

    What the reference cannot answer, such as an answer of one token, is left out and shown.
    """
    if pipeline is TTS:
        return _speak(model, asked, device, show)
    given = getattr(torch, dtype)
    make = _omni3 if pipeline is OMNI3 else _omni25
    ask = make(model, asked, device, given)
    truths = []
    for number, question in enumerate(QUESTIONS[: asked.questions], 1):
        show(f"reference: answer {number} of {asked.questions}")
        try:
            truths.append(ask(question))
        # transformers raises these for answers that it cannot speak.
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
    """Give the reference's decoder its weights as they are stored: decoders are served in float32,
    and what was rounded when the whole model was loaded is lost."""
    decoder.float()
    weights = Weights(model)
    with weights.open() as reader:
        stored = {
            name.removeprefix(prefix): reader.read(name)
            for name in weights.files
            if name.startswith(prefix)
        }
        # Buffers that are computed are not stored, or are and have no place.
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


def _speak(model: Path, asked: Amounts, device: str, show: Show) -> list[Truth]:
    """Qwen3-TTS: the two stages in float32, which equal the vendor's recorded answers on a CPU."""
    config = StageConfig(device=device, dtype="float32", engine="torch", slots=1)
    sentences = SENTENCES[: asked.questions]
    stage = stages.load(TTS, "talker", model, config)
    spoken = []
    for number, sentence in enumerate(sentences, 1):
        show(f"reference: codes {number} of {len(sentences)}")
        settings = greedy(stage, TTS, "talker", asked.frames + 1)
        spoken.append(made_codes(answer(stage.engine, settings, question_input(sentence))))
    del stage
    stages.give_memory_back()
    show("reference: audio")
    decoder = stages.load(TTS, "code2wav", model, config)
    samples = [hear(decoder, TTS, "code2wav", codes) for codes in spoken]
    del decoder
    stages.give_memory_back()
    none = np.empty((0, KEPT_LOGPROBS))
    ids, floats = none.astype(np.int32), none.astype(np.float32)
    return [
        Truth(sentence, ids[:, 0], ids, floats, floats[:, 0], codes, heard)
        for sentence, codes, heard in zip(sentences, spoken, samples, strict=True)
    ]
