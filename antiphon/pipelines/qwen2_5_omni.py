"""Qwen2.5-Omni: thinker -> talker -> token2wav.

The contract between its stages: the edges, the ids and the voices. Reference:
`transformers.Qwen2_5OmniForConditionalGeneration.generate` (5.19), with the attention mask restored
that its talker's generation loses.

The talker needs a row of the thinker for every position of prompt and reply: the last hidden state,
after the final norm, plus the word embedding, which is zero at positions of audio, images and
videos. So all rows are transmitted, and a reply's row exists one step after its id. Token2wav
generates audio in blocks of codes from noise, which is keyed by the seed of its sampling: see
`noise_source`.
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
"""For each voice: `bos_token` (for the talker, an id in the thinker's table), and `cond` and
`ref_mel` (for token2wav)."""

DEFAULT_VOICE = "chelsie"
"""Default voice if the checkpoint has it, as in the reference."""

CODE_RATE_HZ = 50.0
TOKEN_PACE_S = 0.018
"""Interval between chunks of `tokens`. A frame needs one token and lasts longer."""
BLOCK_CODES = 12

Voice = TypeVar("Voice")


def talker_example(settings: ExampleSettings) -> MadeUp:
    """Return a prompt of random ids and rows, at once, then as many reply rows, one by one."""
    if settings.model_dir is None:
        raise FailedPrecondition(
            "a prompt for the talker needs the width of the checkpoint's rows: name the directory "
            "where it lies (--model DIR)",
            field="model",
        )
    config = read_config(settings.model_dir)
    placeholders = PlaceholderIds.from_config(config)
    # Ids below these are text tokens only.
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
    # Released checkpoints use the first name, those saved by transformers the second.
    architectures=("Qwen2_5OmniModel", "Qwen2_5OmniForConditionalGeneration"),
    files=(CheckpointFiles(others=(VOICES_FILE,)),),
    stages=(
        StageSpec(THINKER, samples=True, example=conversation("input")),
        StageSpec(TALKER, samples=True, example=talker_example),
        # Only in float32, like the reference.
        StageSpec(TOKEN2WAV, example=random_codes(CODES), dtype="float32"),
    ),
    edges=(
        conversation_edge(THINKER),
        text_edge(THINKER),
        tool_calls_edge(THINKER),
        # First chunk: all prompt ids, and the inputs of `rotary_positions` for the images and
        # videos among them, in order. Later chunks: the rows, in order, as prefill produces them.
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
        # The rows of reply ids, each one step after its id. The last id never has a row, whether it
        # is a stop id or the id at a length limit.
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
    # An incomplete block yields no audio.
    chunk_policy=ChunkPolicy(first=BLOCK_CODES, ramp=(), steady=BLOCK_CODES),
)


@dataclass(frozen=True, slots=True)
class PlaceholderIds:
    """Placeholder ids of audio, images and videos in the thinker's vocabulary."""

    audio: int
    image: int
    video: int

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PlaceholderIds:
        """Read the ids from a checkpoint's `config.json`. Raises `FailedPrecondition`."""
        thinker = config.get("thinker_config", {})
        found = {}
        for name in ("audio", "image", "video"):
            found[name] = thinker.get(f"{name}_token_index", thinker.get(f"{name}_token_id"))
            if not isinstance(found[name], int):
                raise _unusable(f"thinker_config.{name}_token_index")
        return cls(**found)

    @property
    def seen(self) -> tuple[int, int]:
        """The ids of images and videos."""
        return self.image, self.video


def code_entries(config: dict[str, Any]) -> int:
    """Return the number of codes that token2wav supports. Raises `FailedPrecondition`."""
    try:
        # Its table has one row more than configured.
        return int(config["token2wav_config"]["dit_config"]["num_embeds"]) + 1
    except (KeyError, TypeError, ValueError) as error:
        raise _unusable("token2wav_config.dit_config.num_embeds") from error


def noise_source(key: int) -> np.random.Generator:
    """Return the generator of token2wav's noise for one answer, from its keyed sampling seed.

    The noise is its standard normals in float32, in the order of mel frames.
    """
    return np.random.Generator(np.random.Philox(key=key))


def voices_by_name(told: Mapping[str, Voice]) -> dict[str, Voice]:
    """Return voices by lower-case name, the default first.

    Raises `FailedPrecondition` for two names that differ only by case.
    """
    named = {name.lower(): voice for name, voice in told.items()}
    if len(named) < len(told):
        raise FailedPrecondition(
            f"{VOICES_FILE}: two voices have names that differ by case alone: "
            f"{', '.join(told)}; {REMEDY}"
        )
    return dict(sorted(named.items(), key=lambda voice: voice[0] != DEFAULT_VOICE))


def _unusable(name: str) -> FailedPrecondition:
    return FailedPrecondition(f"{CONFIG_FILE}: {name} is missing or no integer; {REMEDY}")
