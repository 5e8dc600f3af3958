"""A talker over the weights of Hugging Face's, and the rows that a thinker would send it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from antiphon.pipelines.files import read_config
from antiphon.pipelines.qwen2_5_omni import CODES, PROMPT, TOKENS, PlaceholderIds
from antiphon.runtime.checkpoint.torch_files import read_torch_file
from antiphon.runtime.engine import InputChunk, SegmentSettings
from antiphon.values.conversation import Conversation
from antiphon.values.sampling import Sampling
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.readback import Readback
from antiphon_services.qwen2_5_omni.talker.engine import CodecTalkerEngine
from antiphon_services.qwen2_5_omni.talker.ids import TalkerIds
from antiphon_services.qwen2_5_omni.talker.model import CodecTalker
from antiphon_testkit.late_copies import late_to_host
from antiphon_testkit.margins import MIN_MARGIN
from antiphon_testkit.qwen2_5_omni.reference import Omni25Case, Omni25Output, Omni25Reference

GREEDY = Sampling(0.0, 40, 0.8, 1.05, seed=0, max_tokens=60)
SAMPLED = replace(GREEDY, temperature=0.9)


@dataclass(frozen=True)
class Question:
    """What is asked, and what Hugging Face's thinker and talker make of it.

    `grids` are those of images among the prompt's `ids`, in positions.
    """

    truth: Omni25Output
    ids: npt.NDArray[np.int32]
    grids: npt.NDArray[np.int32]

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
        return [*self.prompt_chunks(sizes), *pieces(TOKENS, self.reply, sizes)]

    def prompt_chunks(
        self, sizes: Sequence[int] = (1000,), rows: npt.NDArray[np.float32] | None = None
    ) -> list[InputChunk]:
        """The ids, and then the prompt's rows, or others, in pieces."""
        told = {"ids": self.ids}
        if len(self.grids):
            told |= {"grids": self.grids, "steps": np.ones(len(self.grids), np.int32)}
        rows = self.prompt if rows is None else rows
        return [InputChunk(PROMPT, 0, told), *pieces(PROMPT, rows, sizes)]


class Lab:
    """Hugging Face's model of a checkpoint, and ours over the same weights."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.reference = Omni25Reference(directory)
        config = read_config(directory)
        self.ids = TalkerIds.from_config(config)
        self.placeholders = PlaceholderIds.from_config(config)
        told = read_torch_file(directory / "spk_dict.pt")
        self.voices = {name: each["bos_token"] for name, each in told.items()}
        self.launch_ahead = False

    @property
    def head(self) -> torch.Tensor:
        """The talker's, which tests may change: for both."""
        weight: torch.Tensor = self.reference.model.talker.codec_head.weight
        return weight

    def model(
        self, *, context_limit: int = 1024, slots: int = 8, bucketing: Bucketing | None = None
    ) -> CodecTalker:
        """One whose codes are on the host only when they are waited for, if it launches ahead."""
        return CodecTalker(
            self.reference.model.talker.requires_grad_(False),
            self.reference.model.thinker.get_input_embeddings().weight.detach(),
            self.ids,
            self.placeholders,
            self.voices,
            context_limit=context_limit,
            slots=slots,
            readback=Readback(late_to_host() if self.launch_ahead else None),
            bucketing=bucketing,
        )

    def engine(
        self, *, context_limit: int = 1024, slots: int = 8, bucketing: Bucketing | None = None
    ) -> CodecTalkerEngine:
        with torch.inference_mode():
            model = self.model(context_limit=context_limit, slots=slots, bucketing=bucketing)
        return CodecTalkerEngine(model, context_limit, launch_ahead=self.launch_ahead)

    def ask(self, conversation: Conversation, **settings: Any) -> Question:
        """Run the reference, without the decoder."""
        case = Omni25Case(conversation, waveform=False, **settings)
        with torch.inference_mode():
            truth = self.reference.run(case)
            assert truth.margin >= MIN_MARGIN, truth.margin
            inputs = self.reference.inputs(case.conversation, case.images)
        shown = inputs.get("image_grid_thw", torch.empty(0, 3)).numpy().astype(np.int32)
        merge = self.reference.merge_size
        return Question(truth, truth.prompt_ids, shown // np.array([1, merge, merge], np.int32))

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


def pieces(edge: str, rows: npt.NDArray[np.float32], sizes: Sequence[int]) -> list[InputChunk]:
    """Chunks of these sizes, and an end without rows."""
    chunks: list[InputChunk] = []
    start, count = 0, len(rows)
    while start < count:
        size = sizes[len(chunks) % len(sizes)]
        chunks.append(InputChunk(edge, start, {"rows": rows[start : start + size]}))
        start += size
    return [*chunks, InputChunk(edge, count, {}, segment_finished=True)]
