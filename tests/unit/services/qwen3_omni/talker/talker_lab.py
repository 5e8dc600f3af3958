"""A loaded talker beside Hugging Face's model of the same tiny checkpoint."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from msgspec import structs

from antiphon.deployment.schema import StageConfig
from antiphon.pipelines.files import read_config
from antiphon.pipelines.media_ids import is_media
from antiphon.pipelines.qwen3_omni import (
    SpecialIds,
    assistant_start,
    talker_row_positions,
    user_positions,
)
from antiphon.runtime.engine import InputChunk, LoadedStage, SegmentSettings
from antiphon.values.sampling import Sampling
from antiphon.values.segment import FinishReason
from antiphon_services.lm.graphs import Bucketing
from antiphon_services.lm.readback import Readback
from antiphon_services.qwen3_omni.talker.engine import TalkerEngine
from antiphon_services.qwen3_omni.talker.load import load
from antiphon_services.qwen3_omni.talker.model import Talker
from antiphon_testkit.drive_engine import SegmentOutput
from antiphon_testkit.flat_settings import stage_config
from antiphon_testkit.late_copies import LateCopies, late_to_host
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint

Ids = npt.NDArray[np.int32]

GREEDY = Sampling(0.0, 50, 1.0, 1.05, seed=0, max_tokens=30)
SAMPLED = replace(GREEDY, temperature=0.9, seed=1234)

# Both sides round differently; a choice between nearer logits says nothing.
LEAST_MARGIN = 1e-4
NEWLINE = 10


@dataclass(frozen=True)
class Reference:
    """`codes` [T, G]; `margin` is the least distance of a choice to the second best."""

    codes: npt.NDArray[np.int64]
    margin: float
    reason: FinishReason


@dataclass(frozen=True, eq=False)
class Turn:
    """Inputs of one segment; `rows` [n, thinker hidden] at the prompt's audio positions, and
    at those of images and videos, whose `grids` and `steps` are as the thinker tells them."""

    prompt: Ids
    reply: Ids
    rows: npt.NDArray[np.float32]
    row_positions: Ids
    voice: str = "ethan"
    sampling: Sampling = GREEDY
    grids: tuple[tuple[int, int, int], ...] = ()
    steps: tuple[int, ...] = ()

    @property
    def settings(self) -> SegmentSettings:
        return SegmentSettings(self.voice, self.sampling, frozenset({"codes"}))

    def prompt_chunks(self, rows_per_chunk: int = 1000) -> list[InputChunk]:
        first = {"ids": self.prompt}
        if self.grids:
            first |= {"grids": np.array(self.grids, np.int32)}
            first |= {"steps": np.array(self.steps, np.int32)}
        chunks = [InputChunk("prompt", 0, first)]
        for start in range(0, len(self.rows), rows_per_chunk):
            part = slice(start, start + rows_per_chunk)
            tensors = {"rows": self.rows[part], "row_positions": self.row_positions[part]}
            chunks.append(InputChunk("prompt", len(self.prompt), tensors))
        return [*chunks[:-1], structs.replace(chunks[-1], segment_finished=True)]

    def token_chunks(self, per_chunk: int = 1000) -> list[InputChunk]:
        chunks = [
            InputChunk("tokens", start, {"ids": self.reply[start : start + per_chunk]})
            for start in range(0, len(self.reply), per_chunk)
        ]
        end = InputChunk("tokens", len(self.reply), {}, segment_finished=True)
        return [*chunks, end]

    def chunks(self) -> list[InputChunk]:
        return self.prompt_chunks() + self.token_chunks()


@dataclass
class Lab:
    """One checkpoint, served and as a reference."""

    directory: Path
    shape: TinyShape
    special: SpecialIds
    stage: LoadedStage
    model: Any
    known: dict[Turn, Reference] = field(default_factory=dict)
    turns: dict[Any, Turn] = field(default_factory=dict)

    @cached_property
    def ahead(self) -> Lab:
        """The same, served by an engine that launches ahead."""
        return replace(self, stage=load(self.directory, stage_config(launch_ahead=True)))

    def text(self, seed: int, count: int) -> list[int]:
        """Ids of plain bytes, none of them special."""
        return np.random.default_rng(seed).integers(20, 200, count).tolist()

    def segment(self, role: int, content: Sequence[int]) -> list[int]:
        special = self.special
        return [special.im_start, role, NEWLINE, *content, special.im_end, NEWLINE]

    def make_turn(
        self, prompt: Sequence[int], reply: Sequence[int], seed: int = 0, **changes: Any
    ) -> Turn:
        ids = np.array(prompt, np.int32)
        positions = talker_row_positions(ids, self.special).astype(np.int32)
        noise = np.random.default_rng(seed).standard_normal((len(positions), self.shape.hidden))
        rows = noise.astype(np.float32)
        return Turn(ids, np.array(reply, np.int32), rows, positions, **changes)

    def question(self, seed: int, audio: int) -> list[int]:
        """A system text and one user turn with `audio` positions of sound in its middle."""
        content = self.text(seed, 4) + [self.special.audio] * audio + self.text(seed + 1, 3)
        system = self.text(seed + 2, 5)
        header = [self.special.im_start, self.special.assistant, NEWLINE]
        return self.segment(8, system) + self.segment(self.special.user, content) + header

    def turn(self, seed: int, *, audio: int = 0, reply: int = 7, **changes: Any) -> Turn:
        """A turn with decided choices: the first such from `seed` on."""
        key = (seed, audio, reply, tuple(changes.items()))
        if key not in self.turns:
            self.turns[key] = self.decided(
                self.make_turn(self.question(at, audio), self.text(at + 3, reply), at, **changes)
                for at in itertools.count(seed, 100)
            )
        return self.turns[key]

    def decided(self, turns: Iterator[Turn]) -> Turn:
        """The first of the turns whose every choice has the least margin."""
        return next(
            turn
            for turn in itertools.islice(turns, 20)
            if self.reference(turn).margin >= LEAST_MARGIN
        )

    def reference(self, turn: Turn) -> Reference:
        """What Hugging Face makes of the turn, greedily."""
        if turn not in self.known:
            self.known[turn] = greedy_reference(self.model, turn, self.special)
        return self.known[turn]


def make_lab(directory: Path, shape: TinyShape) -> Lab:
    from transformers import Qwen3OmniMoeForConditionalGeneration

    torch.set_num_threads(1)
    build_tiny_checkpoint(directory, shape)
    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(directory).eval()
    special = SpecialIds.from_config(read_config(directory))
    return Lab(directory, shape, special, load(directory, StageConfig()), model)


def make_late_engine(
    lab: Lab, slots: int, bucketing: Bucketing | None = None, *, launch_ahead: bool = True
) -> tuple[TalkerEngine, LateCopies]:
    """One that launches ahead unless told, on a device whose copies are made only when they are
    waited for."""
    copies, limit = LateCopies(), 2048
    with torch.inference_mode():
        talker = Talker(
            lab.model.talker,
            lab.model.thinker.get_input_embeddings().weight,
            lab.special,
            code_entries=lab.stage.facts.code_entries,
            context_limit=limit,
            slots=slots,
            readback=Readback(late_to_host(copies)),
            bucketing=bucketing,
        )
    return TalkerEngine(talker, limit, launch_ahead=launch_ahead), copies


def codes_of(lab: Lab, output: SegmentOutput) -> npt.NDArray[np.uint16]:
    """All frames, after checking positions, dtype and shape of each."""
    assert output.failed is None, output.failed
    frames = [each for each in output.emitted if each.tensors]
    for position, frame in enumerate(frames):
        assert frame.position == position
        assert frame.tensors["codes"].dtype == np.uint16
        assert frame.tensors["codes"].shape == (1, lab.shape.code_groups)
    assert output.completed is not None
    assert output.completed.output_positions == len(frames)
    assert output.emitted[-1].position == len(frames)
    assert output.finish_reason("codes") == output.completed.finish_reason
    empty = np.empty((0, lab.shape.code_groups), np.uint16)
    return np.concatenate([empty, *(frame.tensors["codes"] for frame in frames)])


@contextmanager
def recorded_margins(model: Any) -> Iterator[list[float]]:
    """The top-2 margin of every code that the code predictor chooses."""
    margins: list[float] = []

    def record(module: Any, inputs: Any, logits: torch.Tensor) -> None:
        best = logits[0, -1].topk(2).values
        margins.append(float(best[0] - best[1]))

    hooks = [head.register_forward_hook(record) for head in model.talker.code_predictor.lm_head]
    try:
        yield margins
    finally:
        for hook in hooks:
            hook.remove()


def grids_for_reference(turn: Turn, config: Any) -> dict[str, torch.Tensor]:
    """What Hugging Face's talker is told of images (one time) and videos (several)."""
    merge = config.spatial_merge_size
    whole = [(times, merge * rows, merge * columns) for times, rows, columns in turn.grids]
    images = [grid for grid in whole if grid[0] == 1]
    videos = [grid for grid in whole if grid[0] > 1]
    seconds = [
        step / config.position_id_per_seconds
        for grid, step in zip(whole, turn.steps, strict=True)
        if grid[0] > 1
    ]
    told = {}
    if images:
        told |= {"image_grid_thw": torch.tensor(images)}
    if videos:
        told |= {"video_grid_thw": torch.tensor(videos)}
        told |= {"video_second_per_grid": torch.tensor(seconds)}
    return told


@torch.no_grad()
def greedy_reference(model: Any, turn: Turn, special: SpecialIds) -> Reference:
    """The middle of `Qwen3OmniMoeForConditionalGeneration.generate`, with the ids given."""
    prompt = turn.prompt
    ids = torch.from_numpy(np.concatenate((prompt, turn.reply)).astype(np.int64))[None]
    embed = model.thinker.get_input_embeddings()
    heard = torch.from_numpy(is_media(ids.numpy(), special))
    hidden = torch.zeros_like(embed(ids))
    hidden[heard] = torch.from_numpy(turn.rows)
    starts = [i for i, token in enumerate(prompt) if token == special.im_start]
    parts = [
        model._get_talker_user_parts(start, end, heard, hidden, embed(ids))
        for start, end in zip(starts, [*starts[1:], len(prompt)], strict=True)
        if prompt[start + 1] == special.user
    ]
    pad, bos, eos = (
        model.talker.text_projection(embed(torch.tensor([[token]])))
        for token in (special.tts_pad, special.tts_bos, special.tts_eos)
    )
    speaker = model.config.talker_config.speaker_id[turn.voice]
    answer, _, trailing = model._get_talker_assistant_parts(
        assistant_start(prompt, special), ids.shape[1], speaker, embed(ids), pad, bos, eos
    )
    config = model.config.talker_config
    vocabulary, stop = config.text_config.vocab_size, config.codec_eos_token_id
    inputs = torch.cat((*parts, answer), dim=1)
    spoken_to = prompt[user_positions(prompt, special)].tolist()
    reference, _ = run_reference(
        model,
        inputs_embeds=inputs,
        trailing_text_hidden=trailing,
        tts_pad_embed=pad,
        attention_mask=torch.ones(inputs.shape[:2], dtype=torch.long),
        talker_input_ids=torch.tensor([spoken_to + [special.tts_pad] * answer.shape[1]]),
        **grids_for_reference(turn, config),
        max_new_tokens=turn.sampling.max_tokens,
        do_sample=False,
        repetition_penalty=turn.sampling.repetition_penalty,
        suppress_tokens=[i for i in range(vocabulary - 1024, vocabulary) if i != stop],
        eos_token_id=stop,
        output_hidden_states=True,
        return_dict_in_generate=True,
    )
    return reference


def run_reference(model: Any, **keywords: Any) -> tuple[Reference, Any]:
    """The talker's own `generate` with the margins of its choices, and its result."""
    config = model.config.talker_config
    with recorded_margins(model) as margins, warnings.catch_warnings():
        # "Passing `repetition_penalty` with `inputs_embeds` and without `input_ids`".
        warnings.simplefilter("ignore", UserWarning)
        result = model.talker.generate(output_scores=True, **keywords)
    for scores in result.scores:
        best = scores[0].topk(2).values
        margins.append(float(best[0] - best[1]))
    frames = [hidden[-1] for hidden in result.hidden_states if hidden[-1] is not None]
    codes = torch.cat(frames).numpy() if frames else np.empty((0, config.num_code_groups), np.int64)
    stopped = int(result.sequences[0, -1]) == config.codec_eos_token_id
    reason = FinishReason.STOP if stopped else FinishReason.LENGTH
    return Reference(codes, min(margins), reason), result
