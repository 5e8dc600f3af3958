"""Dynin-Omni (`snu-aidas/Dynin-Omni`): thinker -> unit2wav, thinker -> token2image.

This module defines only what its stages must agree on. The reference is the vendor's repository,
AIDASLab/Dynin-Omni. A single masked-diffusion model, the thinker, generates each answer as tokens
of one type. Text is sent to the client, speech units are sent to unit2wav, and image tokens are
sent to token2image.

A checkpoint consists of three directories. They contain the model, EMOVA's speech tokenizer and
MAGVITv2. The thinker uses the encoders of both tokenizers, and the other two stages use their
decoders. `CheckpointDirs` finds these directories.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from antiphon.deployment.stage_config import FilesConfig
from antiphon.pipelines.edges import (
    audio_edge,
    conversation_edge,
    image_edge,
    text_edge,
    whole_ids_edge,
)
from antiphon.pipelines.examples import conversation, random_ids
from antiphon.pipelines.files import CONFIG_FILE
from antiphon.pipelines.graph import TORCH_ONLY, CheckpointFiles, Companion, Pipeline, StageSpec
from antiphon.values.options import (
    DIALOGUE,
    IMAGE,
    SIZE,
    SPEECH,
    TASK,
    TRANSCRIPTION,
    Option,
    OptionKind,
)

THINKER, UNIT2WAV, TOKEN2IMAGE = "thinker", "unit2wav", "token2image"
INPUT, TEXT, UNITS, IMAGE_TOKENS = "input", "text", "units", "image_ids"
AUDIO, DRAWING = "audio", "image"

SPEECH_TOKENIZER, IMAGE_TOKENIZER = "emova_speech_tokenizer_hf", "magvitv2"
"""The names of the directories in which the tokenizers are released."""
SPEECH_REPOSITORY = Companion(
    f"snu-aidas/{SPEECH_TOKENIZER}", "audio_tokenizer_dir", SPEECH_TOKENIZER
)
IMAGE_REPOSITORY = Companion(f"snu-aidas/{IMAGE_TOKENIZER}", "image_tokenizer_dir", IMAGE_TOKENIZER)

UNIT_ENTRIES, IMAGE_ENTRIES = 4096, 8192
"""The number of speech units and image tokens.

In the vocabulary of the model, the image tokens follow the text tokens, and the speech units follow
the image tokens.
"""

STEPS, BLOCK, GUIDANCE = "steps", "block", "guidance"
MOST_POSITIONS = 1 << 14
OPTIONS = (
    Option(
        TASK,
        OptionKind.TEXT,
        "The output to generate: an answer to the messages, the last message read aloud, the "
        "transcript of its recording, or an image. The default depends on the endpoint and on the "
        "requested modalities.",
        choices=(DIALOGUE, SPEECH, TRANSCRIPTION, IMAGE),
    ),
    Option(
        SIZE,
        OptionKind.TEXT,
        "The width and height of the image in pixels. Defaults to the largest size, or to 336x336 "
        "if an image is edited.",
        choices=("512x512", "336x336", "256x256"),
    ),
    Option(
        STEPS,
        OptionKind.NUMBER,
        "The number of diffusion steps. Defaults to the vendor's value for the task.",
        least=1,
        most=MOST_POSITIONS,
    ),
    Option(
        BLOCK,
        OptionKind.NUMBER,
        "The number of text or speech positions in a block. Blocks are generated from left to "
        "right. Defaults to the vendor's value for the task.",
        least=1,
        most=MOST_POSITIONS,
    ),
    Option(
        GUIDANCE,
        OptionKind.NUMBER,
        "The scale of classifier-free guidance. 0 disables it, which halves the cost. Defaults to "
        "0 for text, 2.5 for speech and 3.5 for images.",
        most=100.0,
    ),
)
STYLE = Option("style", OptionKind.TEXT, "The gender, emotion, speed and pitch of the voice.")


@dataclass(frozen=True, slots=True)
class CheckpointDirs:
    """The directories that contain the model, EMOVA's speech tokenizer and MAGVITv2."""

    model: Path
    speech: Path
    image: Path

    @classmethod
    def find(cls, model: Path, files: FilesConfig) -> CheckpointDirs:
        """Find the directories in the same way as `Companion.directory`. Raises
        `FailedPrecondition` if one of them cannot be found.
        """
        return cls(
            model,
            SPEECH_REPOSITORY.directory(model, files),
            IMAGE_REPOSITORY.directory(model, files),
        )

    @property
    def all(self) -> tuple[Path, Path, Path]:
        """All three directories. Every stage includes all of them in its fingerprint."""
        return self.model, self.speech, self.image


PIPELINE = Pipeline(
    name="dynin_omni",
    architectures=("DyninOmniModelLM",),
    files=(
        CheckpointFiles(
            folders=("", SPEECH_TOKENIZER, IMAGE_TOKENIZER),
            others=(f"{IMAGE_TOKENIZER}/pytorch_model.safetensors",),
            marker=f"{IMAGE_TOKENIZER}/{CONFIG_FILE}",
        ),
        CheckpointFiles(),
    ),
    companions=(SPEECH_REPOSITORY, IMAGE_REPOSITORY),
    stages=(
        StageSpec(
            THINKER, engines=TORCH_ONLY, samples=True, options=OPTIONS, example=conversation(INPUT)
        ),
        StageSpec(UNIT2WAV, engines=TORCH_ONLY, options=(STYLE,), example=random_ids(UNITS)),
        StageSpec(TOKEN2IMAGE, engines=TORCH_ONLY, example=random_ids(IMAGE_TOKENS)),
    ),
    edges=(
        conversation_edge(THINKER),
        text_edge(THINKER),
        whole_ids_edge(UNITS, THINKER, UNIT2WAV, "speech unit"),
        whole_ids_edge(IMAGE_TOKENS, THINKER, TOKEN2IMAGE, "image token"),
        audio_edge(UNIT2WAV),
        image_edge(TOKEN2IMAGE),
    ),
)
