"""A talker over the weights of Hugging Face's, and the rows that a thinker would send it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from antiphon.conversation import Conversation
from antiphon.pipelines.files import read_config
from antiphon.runtime.checkpoint.torch_files import read_torch_file
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.sampling import Sampling
from antiphon.testing.margins import MIN_MARGIN
from antiphon.testing.qwen2_5_omni.reference import Omni25Case, Omni25Output, Omni25Reference
from services.qwen2_5_omni.talker.engine import CodecTalkerEngine
from services.qwen2_5_omni.talker.ids import CODES, PROMPT, TOKENS, TalkerIds
from services.qwen2_5_omni.talker.model import CodecTalker

GREEDY = Sampling(0.0, 40, 0.8, 1.05, seed=0, max_tokens=60)
SAMPLED = replace(GREEDY, temperature=0.9)


@dataclass(frozen=True)
class Question:
    """What is asked, and what Hugging Face's thinker and talker make of it."""

    truth: Omni25Output
    positions: npt.NDArray[np.int32] | None = None

    @property
    def prompt(self) -> npt.NDArray[np.float32]:
        """The thinker's rows of the prompt."""
        assert self.truth.talker_input is not None
        return self.truth.talker_input.rows[:-2]

    @property
    def reply(self) -> npt.NDArray[np.float32]:
        """Those of the reply but for its last token."""
        assert self.truth.talker_input is not None
        told = self.truth.talker_input
        return np.concatenate((told.rows[-1:], told.reply[:-2]))

    def chunks(self, sizes: Sequence[int] = (1000,)) -> list[InputChunk]:
        """Prompt and reply in pieces of these sizes, again and again."""
        told = {} if self.positions is None else {"positions": self.positions}
        prompt = pieces(PROMPT, {"rows": self.prompt} | told, sizes)
        return [*prompt, *pieces(TOKENS, {"rows": self.reply}, sizes)]


class Lab:
    """Hugging Face's model of a checkpoint, and ours over the same weights."""

    def __init__(self, directory: Path) -> None:
        self.reference = Omni25Reference(directory)
        self.ids = TalkerIds.from_config(read_config(directory))
        told = read_torch_file(directory / "spk_dict.pt")
        self.voices = {name: each["bos_token"] for name, each in told.items()}

    @property
    def head(self) -> torch.Tensor:
        """The talker's, which tests may change: for both."""
        weight: torch.Tensor = self.reference.model.talker.codec_head.weight
        return weight

    def model(self, *, context_limit: int = 1024, slots: int = 8) -> CodecTalker:
        return CodecTalker(
            self.reference.model.talker.requires_grad_(False),
            self.reference.model.thinker.get_input_embeddings().weight.detach(),
            self.ids,
            self.voices,
            context_limit=context_limit,
            slots=slots,
        )

    def engine(self, *, context_limit: int = 1024, slots: int = 8) -> CodecTalkerEngine:
        with torch.inference_mode():
            model = self.model(context_limit=context_limit, slots=slots)
        return CodecTalkerEngine(model, context_limit)

    def ask(self, conversation: Conversation, **settings: Any) -> Question:
        """Run the reference, without the decoder."""
        case = Omni25Case(conversation, waveform=False, **settings)
        with torch.inference_mode():
            truth = self.reference.run(case)
            assert truth.margin >= MIN_MARGIN, truth.margin
            positions = self._positions(case) if case.images else None
        return Question(truth, positions)

    def _positions(self, case: Omni25Case) -> npt.NDArray[np.int32]:
        """Of the prompt in rotary attention, as the reference's thinker has them."""
        inputs = self.reference.inputs(case.conversation, case.images)
        positions, _ = self.reference.model.thinker.get_rope_index(
            inputs["input_ids"], inputs["image_grid_thw"], attention_mask=inputs["attention_mask"]
        )
        return np.ascontiguousarray(positions[:, 0].T.numpy().astype(np.int32))

    def codes(self, truth: Omni25Output) -> list[int]:
        """What should leave: the codes that the decoder has rows for."""
        return [code for code in truth_codes(truth, self.ids) if code < self.ids.code_entries]


def truth_codes(truth: Omni25Output, ids: TalkerIds) -> list[int]:
    """All that was drawn before an end."""
    drawn: list[int] = truth.drawn.tolist()
    ends = [at for at, code in enumerate(drawn) if code in (ids.codec_pad, ids.codec_end)]
    return drawn[: min(ends, default=len(drawn))]


def settings(voice: str = "Chelsie", sampling: Sampling = GREEDY) -> SegmentSettings:
    return SegmentSettings(voice, sampling, frozenset({CODES}))


def pieces(
    edge: str, tensors: dict[str, npt.NDArray[Any]], sizes: Sequence[int]
) -> list[InputChunk]:
    """Chunks of these sizes, and an end without rows."""
    chunks: list[InputChunk] = []
    start, count = 0, len(tensors["rows"])
    while start < count:
        size = sizes[len(chunks) % len(sizes)]
        part = {name: each[start : start + size] for name, each in tensors.items()}
        chunks.append(InputChunk(edge, start, part))
        start += size
    return [*chunks, InputChunk(edge, count, {}, segment_finished=True)]
