"""Ming TTS (`inclusionAI/Ming-omni-tts-0.5B`, and the folder `talker` of
`inclusionAI/Ming-flash-omni-2.0`): talker -> code2wav.

This module defines only what its two stages must agree on. The reference is the vendor's
repository, inclusionAI/Ming-omni-tts. The talker reads the text itself, so there is no thinker and
no text output. Instead of codes, it generates float latents. Each step generates one frame, which
contains four latents. Code2wav decodes the frames to samples at 44.1 kHz. A voice can be one that
the model was trained on, a recording in the checkpoint, a clone of a reference recording, or a
description in words.

There are two layouts. Ming-omni-tts has one `config.json` and one set of weights. The talker of
Ming-flash-omni 2.0 is the folder `talker` in a larger checkpoint. That folder can also be used by
itself. Its subfolder `llm` contains the configuration and tokenizer of the language model, `vae`
contains the audio networks, and `data/voice_name.json` lists the voices.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.pipelines.edges import audio_edge, frames_edge, spoken_edge
from antiphon.pipelines.examples import conversation, random_floats
from antiphon.pipelines.files import CONFIG_FILE, read_config, read_json, reading
from antiphon.pipelines.graph import TORCH_ONLY, CheckpointFiles, Pipeline, StageSpec
from antiphon.values.options import Option, OptionKind
from antiphon.values.segment import ChunkPolicy

TALKER, CODE2WAV = "talker", "code2wav"
INPUT, LATENTS, AUDIO = "input", "speech_latents", "audio"

ARCHITECTURE = "BailingMMNativeForConditionalGeneration"
FLASH_ARCHITECTURE = "BailingMM2NativeForConditionalGeneration"
"""The architecture of Ming-flash-omni 2.0. Only its folder `talker` is served."""
TALKER_FOLDER, VOICES_FILE = "talker", "data/voice_name.json"
LAYERS_FOLDER, AUDIO_FOLDER = "llm", "vae"
"""Folders in the talker of Ming-flash-omni."""

SAMPLE_RATE_HZ = 44_100
"""The sample rate of reference recordings and of generated audio."""

MOST_REFERENCE_S = 30.0

LATENT_WIDTH = 64
STEP_LATENTS = 4
"""The number of latents that the talker generates in one step. They correspond to 0.32 seconds of
audio.
"""
FRAME_WIDTH = STEP_LATENTS * LATENT_WIDTH
"""The number of floats in a frame, which contains the concatenated latents of one step."""
HISTORY_LATENTS = 32
"""The number of latents before a step that its flow uses as context."""

LATENT_ROWS = 4
"""The number of rows in the audio decoder for each latent."""
ROW_SAMPLES = 882
LATENT_SAMPLES = LATENT_ROWS * ROW_SAMPLES
FRAME_SAMPLES = STEP_LATENTS * LATENT_SAMPLES
FRAME_RATE_HZ = SAMPLE_RATE_HZ / FRAME_SAMPLES

SPEAKER_WIDTH = 192

OPTIONS = (
    Option(
        "instruction",
        OptionKind.TEXT,
        "A description of the voice and of how it speaks: gender, age, timbre and style.",
        instructs=True,
    ),
    Option(
        "reference_audio",
        OptionKind.AUDIO,
        "A recording of the voice to use.",
        sample_rate_hz=SAMPLE_RATE_HZ,
        max_s=MOST_REFERENCE_S,
    ),
    Option(
        "reference_text",
        OptionKind.TEXT,
        "The transcript of the recording. It makes the voice more similar.",
    ),
    Option("dialect", OptionKind.TEXT, "The dialect, in words such as 广粤话 or 川渝话."),
    Option("emotion", OptionKind.TEXT, "The emotion, in words such as 高兴, 愤怒 or 悲伤."),
    Option("pace", OptionKind.TEXT, "The speed: 快速, 中速 or 慢速."),
    Option("pitch", OptionKind.TEXT, "The pitch: 低, 中 or 高."),
    Option("volume", OptionKind.TEXT, "The volume: 低, 中 or 高."),
)


TAIL_SILENCE = "tail_silence_s"
MOST_TAIL_S = 10.0

DECODER_OPTIONS = (
    Option(
        TAIL_SILENCE,
        OptionKind.NUMBER,
        "The maximum length of silence at the end of speech in seconds. By default, silence is "
        "not trimmed.",
        most=MOST_TAIL_S,
    ),
)

PIPELINE = Pipeline(
    name="ming_tts",
    architectures=(ARCHITECTURE, FLASH_ARCHITECTURE),
    # If the folder `talker` is used on its own, there is no architecture in it.
    marker=VOICES_FILE,
    files=(
        # Only the talker of Ming-flash-omni is downloaded.
        CheckpointFiles(
            folders=(TALKER_FOLDER, f"{TALKER_FOLDER}/{AUDIO_FOLDER}"),
            others=(
                CONFIG_FILE,
                f"{TALKER_FOLDER}/{LAYERS_FOLDER}/*.json",
                f"{TALKER_FOLDER}/{LAYERS_FOLDER}/*.txt",
                f"{TALKER_FOLDER}/campplus.onnx",
                f"{TALKER_FOLDER}/data/*",
            ),
            marker=f"{TALKER_FOLDER}/{CONFIG_FILE}",
        ),
        CheckpointFiles(
            folders=("", AUDIO_FOLDER),
            others=(
                f"{LAYERS_FOLDER}/*.json",
                f"{LAYERS_FOLDER}/*.txt",
                "campplus.onnx",
                "data/*",
            ),
        ),
    ),
    # A frame is as long as several frames of other families, so each one is sent immediately.
    chunk_policy=ChunkPolicy(first=1, ramp=(), steady=1),
    stages=(
        StageSpec(
            TALKER,
            engines=TORCH_ONLY,
            samples=True,
            reads_aloud=True,
            options=OPTIONS,
            example=conversation(INPUT),
        ),
        # Like the reference on a CPU, this stage supports only float32.
        StageSpec(
            CODE2WAV,
            engines=TORCH_ONLY,
            options=DECODER_OPTIONS,
            example=random_floats(LATENTS),
            dtype="float32",
        ),
    ),
    edges=(
        spoken_edge(TALKER),
        frames_edge(
            LATENTS,
            TALKER,
            CODE2WAV,
            rate_hz=FRAME_RATE_HZ,
            groups=FRAME_WIDTH,
            dtype="float32",
        ),
        audio_edge(CODE2WAV, LATENTS, "float32"),
    ),
)

FLOW_OF_FLASH = "flowmodel"
"""A field of `config.json` that is only present in the layout of Ming-flash-omni."""


@dataclass(frozen=True, slots=True)
class MingCheckpoint:
    """A checkpoint. `folder` contains the talker's weights and `campplus.onnx`.

    `config` is the content of the `config.json` in this folder. `flash` is true for the layout of
    Ming-flash-omni.
    """

    folder: Path
    config: dict[str, Any]
    flash: bool

    @classmethod
    def read(cls, model_dir: Path) -> MingCheckpoint:
        """Return the checkpoint in a directory or in its subfolder `talker`.

        Raises `FailedPrecondition` if its `config.json` cannot be read.
        """
        inner = model_dir / TALKER_FOLDER
        folder = inner if (inner / CONFIG_FILE).is_file() else model_dir
        config = read_config(folder)
        return cls(folder, config, FLOW_OF_FLASH in config)

    @property
    def config_file(self) -> Path:
        """The path of the file that contains `config`."""
        return self.folder / CONFIG_FILE

    @property
    def text_folder(self) -> Path:
        """The folder that contains the tokenizer.

        In Ming-flash-omni, it also contains the configuration of the language model.
        """
        return self.folder / LAYERS_FOLDER if self.flash else self.folder

    @property
    def audio_folder(self) -> Path:
        """The folder that contains the weights of the audio networks."""
        return self.folder / AUDIO_FOLDER if self.flash else self.folder

    @property
    def audio_prefix(self) -> str:
        """The prefix of the audio tensors' names."""
        return "" if self.flash else "audio."

    @property
    def voices_file(self) -> Path:
        """The file that lists the voices that are recordings."""
        return self.folder / VOICES_FILE

    def layers(self) -> dict[str, Any]:
        """The configuration of the language model. Raises `FailedPrecondition` if it is missing."""
        if self.flash:
            return read_config(self.text_folder)
        with reading(self.config_file):
            layers: dict[str, Any] = self.config["llm_config"]
        return layers

    def audio(self) -> dict[str, Any]:
        """The configuration of the audio networks. Raises `FailedPrecondition` if it is missing."""
        if self.flash:
            return read_json(self.audio_folder / CONFIG_FILE)
        with reading(self.config_file):
            audio: dict[str, Any] = self.config["audio_tokenizer_config"]
        return audio
