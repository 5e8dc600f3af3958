"""Qwen3-Omni-MoE: thinker -> talker -> code2wav.

What two of its stages must agree on and nothing else: the edges, the special
ids, and which prompt positions the talker reads. Reference:
`transformers.Qwen3OmniMoeForConditionalGeneration.generate` (5.19).

The talker needs the thinker's word embedding at text positions, which is a table
look-up by id, and hidden rows only at audio, image and video positions of user
turns. So `prompt` carries all ids at once and rows as prefill makes them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.chunk import Chunk
from antiphon.errors import DataLoss, FailedPrecondition
from antiphon.pipelines.examples import (
    ExampleSettings,
    MadeUp,
    TimedChunk,
    conversation,
    ending,
    random_codes,
)
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config
from antiphon.pipelines.graph import CLIENT, VARIES, Edge, Pipeline, StageSpec, TensorSpec
from antiphon.segment import Delivery

THINKER, TALKER, CODE2WAV = "thinker", "talker", "code2wav"

DEFAULT_VOICE = "ethan"
"""The voice when none is asked for, if the checkpoint has it; that of the reference's call."""

# A message costs a tenth of a millisecond at each end, whatever it carries: a thinker that is
# faster than this lets tokens share them. Less than a spoken frame takes, and the first token
# never waits.
TOKEN_PACE_S = 0.010


def talker_example(settings: ExampleSettings) -> MadeUp:
    """A prompt of random text ids, at once, and then as many reply ids, one by one."""
    if settings.model_dir is None:
        raise FailedPrecondition(
            "a prompt for the talker needs the checkpoint's special ids: name the directory where "
            "it lies (--model DIR)",
            field="model",
        )
    special = SpecialIds.from_config(read_config(settings.model_dir))
    # Ids below every special one are words (or pieces of words) and nothing else.
    words = min(special.im_start, special.im_end, special.tts_bos, special.audio, special.image)

    def made_up(number: int) -> Sequence[TimedChunk]:
        draw = np.random.default_rng(number)
        question, answer, reply = (
            draw.integers(words, size=size).tolist()
            for size in (settings.prompt_length, 1, settings.tokens)
        )
        turn = [special.im_start, special.user, *question, special.im_end]
        prompt = np.array([*turn, special.im_start, special.assistant, *answer], np.int32)
        chunks = [TimedChunk(0.0, ending(Chunk("", "prompt", tensors={"ids": prompt})))]
        for index, token in enumerate(reply):
            ids = np.array([token], np.int32)
            chunk = Chunk("", "tokens", sequence=index, position=index, tensors={"ids": ids})
            chunks.append(TimedChunk(index / settings.rate_hz, chunk))
        end = ending(Chunk("", "tokens", sequence=len(reply), position=len(reply)))
        return [*chunks, TimedChunk(len(reply) / settings.rate_hz, end)]

    return made_up


PIPELINE = Pipeline(
    name="qwen3_omni",
    architectures=("Qwen3OmniMoeForConditionalGeneration",),
    stages=(
        StageSpec(THINKER, samples=True, example=conversation("input")),
        StageSpec(TALKER, samples=True, example=talker_example),
        StageSpec(CODE2WAV, example=random_codes("codes")),
    ),
    edges=(
        # What the client says: see antiphon/conversation.py. One chunk carries
        # `messages` (JSON) and, as `audio.0`, `audio.1`, ..., the recordings.
        Edge(
            "input",
            CLIENT,
            (THINKER,),
            "message",
            (TensorSpec("messages", "uint8", (VARIES,)),),
            counted_by="messages",
        ),
        Edge(
            "text",
            THINKER,
            (CLIENT,),
            "token",
            (
                TensorSpec("ids", "int32", (VARIES,)),
                TensorSpec("utf8", "uint8", (VARIES,)),
                # If asked for: see antiphon/wire/logprobs.py. Of the tokens whose text
                # begins in this chunk, which need not be those of `ids`.
                TensorSpec("logprob_ids", "int32", (VARIES, VARIES), optional=True),
                TensorSpec("logprobs", "float32", (VARIES, VARIES), optional=True),
                TensorSpec("logprob_sizes", "int32", (VARIES, VARIES), optional=True),
                TensorSpec("logprob_bytes", "uint8", (VARIES,), optional=True),
            ),
            counted_by="ids",
            pace_s=TOKEN_PACE_S,
        ),
        # First chunk: all prompt ids, and what `rotary_positions` needs of the images and
        # videos among them, in their order. Later chunks: `rows[i]` is the tapped
        # hidden state at prompt position `row_positions[i]`; together they cover
        # `talker_row_positions(ids)` in ascending order.
        Edge(
            "prompt",
            THINKER,
            (TALKER,),
            "prompt token",
            (
                TensorSpec("ids", "int32", (VARIES,), optional=True),
                TensorSpec("grids", "int32", (VARIES, 3), optional=True),
                TensorSpec("steps", "int32", (VARIES,), optional=True),
                TensorSpec("rows", "", (VARIES, VARIES), optional=True),
                TensorSpec("row_positions", "int32", (VARIES,), optional=True),
            ),
            counted_by="ids",
        ),
        # Reply ids that are to be spoken: never a stop id, never the token that
        # a length limit ended on.
        Edge(
            "tokens",
            THINKER,
            (TALKER,),
            "token",
            (TensorSpec("ids", "int32", (VARIES,)),),
            counted_by="ids",
            pace_s=TOKEN_PACE_S,
        ),
        Edge(
            "codes",
            TALKER,
            (CODE2WAV,),
            "codec frame",
            (TensorSpec("codes", "uint16", (VARIES, VARIES)),),
            counted_by="codes",
            grouped=True,
            governed=True,
            rate_hz=12.5,
            primed=True,
        ),
        # The samples with the frames that they were decoded from.
        Edge(
            "audio",
            CODE2WAV,
            (CLIENT,),
            "sample",
            (
                TensorSpec("samples", "float32", (VARIES,)),
                TensorSpec("codes", "uint16", (VARIES, VARIES)),
            ),
            counted_by="samples",
            delivery=Delivery.STREAM,
            governed=True,
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """Ids of the thinker's vocabulary that shape a prompt, read from `config.json`."""

    im_start: int
    im_end: int
    user: int
    assistant: int
    tts_pad: int
    tts_bos: int
    tts_eos: int
    audio: int
    image: int
    video: int

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> SpecialIds:
        """Read the ids of a checkpoint's `config.json`. Raises `FailedPrecondition`."""
        thinker = config.get("thinker_config", {})
        try:
            return cls(
                im_start=config["im_start_token_id"],
                im_end=config["im_end_token_id"],
                user=config["user_token_id"],
                assistant=config["assistant_token_id"],
                tts_pad=config["tts_pad_token_id"],
                tts_bos=config["tts_bos_token_id"],
                tts_eos=config["tts_eos_token_id"],
                audio=thinker["audio_token_id"],
                image=thinker["image_token_id"],
                video=thinker["video_token_id"],
            )
        except KeyError as missing:
            raise FailedPrecondition(
                f"{CONFIG_FILE}: {missing.args[0]} is missing; {REMEDY}"
            ) from None


def user_positions(ids: npt.NDArray[np.int32], special: SpecialIds) -> npt.NDArray[np.intp]:
    """Prompt positions of all user segments, ascending.

    A segment runs from one im_start up to, not including, the next; the id after
    im_start is its role. Positions before the first im_start belong to nothing.
    """
    starts = np.flatnonzero(ids == special.im_start)
    ends = np.append(starts[1:], len(ids))
    pieces = [
        np.arange(start, end)
        for start, end in zip(starts, ends, strict=True)
        if start + 1 < len(ids) and ids[start + 1] == special.user
    ]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.intp)


def is_multimodal(ids: npt.NDArray[np.int32], special: SpecialIds) -> npt.NDArray[np.bool_]:
    """Which ids stand for audio, image or video features."""
    return np.isin(ids, (special.audio, special.image, special.video))


def talker_row_positions(ids: npt.NDArray[np.int32], special: SpecialIds) -> npt.NDArray[np.intp]:
    """Prompt positions whose hidden row the talker needs, ascending."""
    positions = user_positions(ids, special)
    return positions[is_multimodal(ids[positions], special)]


def assistant_start(ids: npt.NDArray[np.int32], special: SpecialIds) -> int:
    """Position of the last assistant header's im_start. Raises `FailedPrecondition`."""
    heads = np.flatnonzero((ids[:-1] == special.im_start) & (ids[1:] == special.assistant))
    if not len(heads):
        raise FailedPrecondition("the prompt has no assistant header; check the chat template")
    return int(heads[-1])


def rotary_positions(
    ids: npt.NDArray[np.int32],
    special: SpecialIds,
    grids: npt.NDArray[np.int32],
    steps: npt.NDArray[np.int32],
) -> tuple[npt.NDArray[np.int64], int]:
    """Positions [n, 3] (time, height, width) of ids in rotary attention, and the next one.

    Each run of image ids, and each of video ids, is one of `grids` [m, 3] in order: times,
    rows and columns, with times `steps` [m] positions apart. Behind a run positions go on
    from its largest. Mirrors `get_rope_index`, which both thinker and talker use. Raises
    `DataLoss` if runs and grids do not fit.
    """
    seen = np.isin(ids, (special.image, special.video))
    edges = np.flatnonzero(np.diff(np.where(seen, ids, -1), prepend=-1, append=-1))
    runs = [(a, b) for a, b in itertools.pairwise(edges) if seen[a]]
    sizes = grids.astype(np.int64).prod(1).tolist()
    if (grids < 1).any() or (steps < 0).any() or [int(b - a) for a, b in runs] != sizes:
        raise DataLoss(
            f"prompt: images and videos take {[int(b - a) for a, b in runs]} positions, but "
            f"their grids are {grids.tolist()}",
            edge="prompt",
        )
    positions = np.empty((len(ids), 3), np.int64)
    done, following = 0, 0
    for (start, stop), grid, step in zip(runs, grids, steps, strict=True):
        positions[done:start] = np.arange(following, following + start - done)[:, None]
        following += int(start) - done
        place = np.indices(tuple(grid)).reshape(3, -1).T * (int(step), 1, 1)
        positions[start:stop] = following + place
        following += int(place.max()) + 1
        done = int(stop)
    positions[done:] = np.arange(following, following + len(ids) - done)[:, None]
    return positions, following + len(ids) - done
