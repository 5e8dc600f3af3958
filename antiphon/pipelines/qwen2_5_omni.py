"""Qwen2.5-Omni: thinker -> talker -> token2wav.

This module defines what its stages agree on: the edges, the IDs and the voices. The reference is
`transformers.Qwen2_5OmniForConditionalGeneration.generate` (5.19). The reference's talker has a
bug, which is fixed here: its generation loop loses the attention mask.

The talker needs a row from the thinker for every position of the prompt and of the reply. A row is
the last hidden state, after the final norm, plus the word embedding. The word embedding is zero at
positions of audio, images and videos. For this reason, all rows are transmitted, and the row of a
reply ID is available one step after the ID itself. Token2wav generates audio from noise, in blocks
of codes. The seed in its sampling settings determines the noise, as described in `noise_source`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.edges import (
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
    CheckpointFiles,
    Edge,
    Pipeline,
    StageSpec,
    TensorSpec,
)
from antiphon.values.chunk import Chunk
from antiphon.values.segment import ChunkPolicy

THINKER, TALKER, TOKEN2WAV = "thinker", "talker", "token2wav"
PROMPT, TOKENS, CODES, AUDIO = "prompt", "tokens", "codes", "audio"

VOICES_FILE = "spk_dict.pt"
"""A file that contains three values for each voice.

`bos_token` is an ID in the thinker's embedding table, which the talker uses. `cond` and `ref_mel`
are used by token2wav.
"""

DEFAULT_VOICE = "chelsie"
"""The voice that is used by default if the checkpoint contains it. The reference uses the same
default.
"""

CODE_RATE_HZ = 50.0
TOKEN_PACE_S = 0.018
"""The minimum interval between chunks of `tokens`, in seconds.

Each frame requires one token, and a frame is longer than this interval.
"""
BLOCK_CODES = 12

Voice = TypeVar("Voice")


def talker_example(settings: ExampleSettings) -> MadeUp:
    """Return an example for the talker.

    A prompt of random IDs and rows is sent immediately, followed by `settings.tokens` reply rows,
    one at a time.
    """
    if settings.model_dir is None:
        raise FailedPrecondition(
            "to generate a talker prompt, the width of the checkpoint's rows is needed; specify "
            "its directory (--model DIR)",
            field="model",
        )
    config = read_config(settings.model_dir)
    placeholders = PlaceholderIds.from_config(config)
    # All IDs below the first placeholder are text tokens.
    words = min(placeholders.audio, placeholders.image, placeholders.video)
    try:
        width = int(config["talker_config"]["embedding_size"])
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable("talker_config.embedding_size") from error

    def made_up(number: int) -> Sequence[TimedChunk]:
        draw = np.random.default_rng(number)
        ids = draw.integers(words, size=settings.prompt_length).astype(np.int32)
        rows = draw.standard_normal((len(ids) + settings.tokens, width), np.float32)
        told = Chunk("", PROMPT, tensors={"ids": ids})
        prompt = Chunk("", PROMPT, sequence=1, tensors={"rows": rows[: len(ids)]})
        chunks = [TimedChunk(0.0, told), TimedChunk(0.0, ending(prompt))]
        for index, row in enumerate(rows[len(ids) :]):
            chunk = Chunk("", TOKENS, sequence=index, position=index, tensors={"rows": row[None]})
            chunks.append(TimedChunk(index / settings.rate_hz, chunk))
        end = Chunk("", TOKENS, sequence=settings.tokens, position=settings.tokens)
        return [*chunks, TimedChunk(settings.tokens / settings.rate_hz, ending(end))]

    return made_up


PIPELINE = Pipeline(
    name="qwen2_5_omni",
    # Released checkpoints use the first name. Checkpoints that transformers saved use the second
    # one.
    architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    files=(CheckpointFiles(others=(VOICES_FILE,)),),
    stages=(
        StageSpec(THINKER, engines=TORCH_OR_VLLM, samples=True, example=conversation("input")),
        StageSpec(TALKER, engines=TORCH_ONLY, samples=True, example=talker_example),
        # Like the reference, this stage supports only float32.
        StageSpec(TOKEN2WAV, engines=TORCH_ONLY, example=random_codes(CODES), dtype="float32"),
    ),
    edges=(
        conversation_edge(THINKER),
        text_edge(THINKER),
        tool_calls_edge(THINKER),
        # The first chunk contains all prompt IDs, and the inputs of `rotary_positions` for the
        # images and videos among them, in order. The later chunks contain the rows, in order, as
        # prefill produces them.
        Edge(
            PROMPT,
            THINKER,
            (TALKER,),
            "prompt token",
            (
                TensorSpec("ids", "int32", (VARIES,), optional=True),
                TensorSpec("grids", "int32", (VARIES, 3), optional=True),
                TensorSpec("steps", "int32", (VARIES,), optional=True),
                TensorSpec("rows", "", (VARIES, VARIES), optional=True),
            ),
            counted_by="rows",
        ),
        # The rows of the reply IDs. Each row is sent one step after its ID. The last ID never has a
        # row, whether it is a stop ID or the ID at which the length limit was reached.
        Edge(
            TOKENS,
            THINKER,
            (TALKER,),
            "token",
            (TensorSpec("rows", "", (VARIES, VARIES)),),
            counted_by="rows",
            pace_s=TOKEN_PACE_S,
        ),
        frames_edge(CODES, TALKER, TOKEN2WAV, rate_hz=CODE_RATE_HZ, groups=1),
        audio_edge(TOKEN2WAV, CODES),
    ),
    # An incomplete block doesn't produce any audio.
    chunk_policy=ChunkPolicy(first=BLOCK_CODES, ramp=(), steady=BLOCK_CODES),
)


@dataclass(frozen=True, slots=True)
class PlaceholderIds:
    """The placeholder IDs for audio, images and videos in the thinker's vocabulary."""

    audio: int
    image: int
    video: int

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PlaceholderIds:
        """Read the IDs from a checkpoint's `config.json`.

        Raises `FailedPrecondition` if one of them is missing.
        """
        thinker = config.get("thinker_config", {})
        found = {}
        for name in ("audio", "image", "video"):
            found[name] = thinker.get(f"{name}_token_index", thinker.get(f"{name}_token_id"))
            if not isinstance(found[name], int):
                raise _unusable(f"thinker_config.{name}_token_index")
        return cls(**found)

    @property
    def seen(self) -> tuple[int, int]:
        """The placeholder IDs for images and videos."""
        return self.image, self.video


def code_entries(config: dict[str, Any]) -> int:
    """Return the number of codes that token2wav supports.

    Raises `FailedPrecondition` if the configuration does not specify it.
    """
    try:
        # The embedding table has one row more than the configuration specifies.
        return int(config["token2wav_config"]["dit_config"]["num_embeds"]) + 1
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable("token2wav_config.dit_config.num_embeds") from error


def noise_source(key: int) -> np.random.Generator:
    """Return the generator for the noise that token2wav uses for one answer.

    `key` is the keyed seed of its sampling settings. The noise consists of standard normal values
    in float32, in the order of the mel frames.
    """
    return np.random.Generator(np.random.Philox(key=key))


def voices_by_name(told: Mapping[str, Voice]) -> dict[str, Voice]:
    """Return the voices by lowercase name, starting with the default voice.

    Raises `FailedPrecondition` if two names differ only in case.
    """
    named = {name.lower(): voice for name, voice in told.items()}
    if len(named) < len(told):
        raise FailedPrecondition(
            f"{VOICES_FILE}: the names of two voices differ only in case: {', '.join(told)}; "
            f"{REMEDY}"
        )
    return dict(sorted(named.items(), key=lambda voice: voice[0] != DEFAULT_VOICE))


def _unusable(name: str) -> FailedPrecondition:
    return FailedPrecondition(f"{CONFIG_FILE}: {name} is missing or not an integer; {REMEDY}")
