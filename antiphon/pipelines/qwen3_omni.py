"""Qwen3-Omni-MoE: thinker -> talker -> code2wav.

This module defines what its stages agree on: the edges, the special IDs, and the prompt positions
that the talker reads. The reference is `transformers.Qwen3OmniMoeForConditionalGeneration.generate`
(5.19).

At text positions, the talker needs the thinker's word embedding, which it can look up by ID. It
needs hidden rows only at the positions of audio, images and videos in user turns. For this reason,
`prompt` carries all IDs at once, followed by the rows as prefill produces them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.edges import (
    TEXT_PACE_S,
    audio_edge,
    conversation_edge,
    frames_edge,
    text_edge,
    tool_calls_edge,
)
from antiphon.pipelines.examples import (
    ExampleSettings,
    MadeUp,
    TimedChunk,
    conversation,
    ending,
    random_codes,
)
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config
from antiphon.pipelines.graph import (
    TORCH_ONLY,
    TORCH_OR_VLLM,
    VARIES,
    Edge,
    Pipeline,
    StageSpec,
    TensorSpec,
    Variant,
)
from antiphon.pipelines.media_ids import is_media
from antiphon.values.chunk import Chunk

THINKER, TALKER, CODE2WAV = "thinker", "talker", "code2wav"

DEFAULT_VOICE = "ethan"
"""The voice that is used by default if the checkpoint contains it. The reference uses the same
default.
"""

AUDIO_CHUNK_POSITIONS = 13
"""The number of prompt positions for a full chunk of the audio tower.

A full chunk consists of `2 * n_window` mel frames.
"""


def talker_example(settings: ExampleSettings) -> MadeUp:
    """Return an example for the talker.

    A prompt of random text IDs is sent immediately, followed by `settings.tokens` reply IDs, one at
    a time.
    """
    if settings.model_dir is None:
        raise FailedPrecondition(
            "to generate a talker prompt, the checkpoint's special token IDs are needed; "
            "specify its directory (--model DIR)",
            field="model",
        )
    special = SpecialIds.from_config(read_config(settings.model_dir))
    # All IDs below the first special ID are text tokens.
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
        StageSpec(THINKER, engines=TORCH_OR_VLLM, samples=True, example=conversation("input")),
        StageSpec(TALKER, engines=TORCH_ONLY, samples=True, example=talker_example),
        StageSpec(CODE2WAV, engines=TORCH_ONLY, example=random_codes("codes")),
    ),
    edges=(
        conversation_edge(THINKER),
        text_edge(THINKER),
        tool_calls_edge(THINKER),
        # The first chunk contains all prompt IDs, and the inputs of `rotary_positions` for the
        # images and videos among them, in order. In the later chunks, `rows[i]` is the tapped
        # hidden state at prompt position `row_positions[i]`. Together, these chunks cover
        # `talker_row_positions(ids)` in ascending order. In a live segment, the IDs arrive in
        # pieces, and all pieces except the last one have `more_ids`. If new audio changes the
        # encoding of earlier audio, the rows are sent again, starting at the first position that
        # has changed.
        Edge(
            "prompt",
            THINKER,
            (TALKER,),
            "prompt token",
            (
                TensorSpec("ids", "int32", (VARIES,), optional=True),
                TensorSpec("more_ids", "uint8", (1,), optional=True),
                TensorSpec("grids", "int32", (VARIES, 3), optional=True),
                TensorSpec("steps", "int32", (VARIES,), optional=True),
                TensorSpec("rows", "", (VARIES, VARIES), optional=True),
                TensorSpec("row_positions", "int32", (VARIES,), optional=True),
            ),
            counted_by="ids",
        ),
        # The reply IDs to be spoken. They include neither stop IDs nor the token at which the
        # length limit was reached. A frame of 80 ms needs one token, so the tokens are paced in the
        # same way as text.
        Edge(
            "tokens",
            THINKER,
            (TALKER,),
            "token",
            (TensorSpec("ids", "int32", (VARIES,)),),
            counted_by="ids",
            pace_s=TEXT_PACE_S,
        ),
        frames_edge("codes", TALKER, CODE2WAV, rate_hz=12.5, primed=True),
        audio_edge(CODE2WAV, "codes"),
    ),
    # The Thinking and Captioner releases are of this variant.
    variant=Variant("enable_audio_output", (THINKER,), "only generates text"),
)


@dataclass(frozen=True, slots=True)
class SpecialIds:
    """The thinker IDs that structure a prompt. They are read from `config.json`."""

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
        """Read the IDs from a checkpoint's `config.json`.

        Raises `FailedPrecondition` if one of them is missing.
        """
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

    @property
    def seen(self) -> tuple[int, int]:
        """The placeholder IDs for images and videos."""
        return self.image, self.video


def window_positions(n_window: int, n_window_infer: int) -> int:
    """Return the number of prompt positions in a window of the audio tower.

    Each window is encoded independently. The result is 0 if a window does not consist of a whole
    number of chunks. In this case, windows cannot be encoded separately.
    """
    chunks, rest = divmod(n_window_infer, 2 * n_window)
    return 0 if rest else chunks * AUDIO_CHUNK_POSITIONS


def user_positions(ids: npt.NDArray[np.int32], special: SpecialIds) -> npt.NDArray[np.intp]:
    """Return the prompt positions of all user segments in ascending order.

    A segment starts at an `im_start` token and ends before the next one. The token that follows
    `im_start` is the role. Positions before the first `im_start` do not belong to any segment.
    """
    starts = np.flatnonzero(ids == special.im_start)
    ends = np.append(starts[1:], len(ids))
    pieces = [
        np.arange(start, end)
        for start, end in zip(starts, ends, strict=True)
        if start + 1 < len(ids) and ids[start + 1] == special.user
    ]
    return np.concatenate(pieces) if pieces else np.empty(0, dtype=np.intp)


def talker_row_positions(ids: npt.NDArray[np.int32], special: SpecialIds) -> npt.NDArray[np.intp]:
    """Return the prompt positions whose hidden rows the talker needs, in ascending order."""
    media = is_media(ids, special)
    if not media.any():
        return np.empty(0, dtype=np.intp)
    positions = user_positions(ids, special)
    return positions[media[positions]]


def assistant_start(ids: npt.NDArray[np.int32], special: SpecialIds) -> int:
    """Return the position of `im_start` in the last assistant header.

    Raises `FailedPrecondition` if there is none.
    """
    heads = np.flatnonzero((ids[:-1] == special.im_start) & (ids[1:] == special.assistant))
    if not len(heads):
        raise FailedPrecondition("the prompt has no assistant header; check the chat template")
    return int(heads[-1])
