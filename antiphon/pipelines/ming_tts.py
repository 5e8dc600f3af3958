"""Ming TTS (`inclusionAI/Ming-omni-tts-0.5B`, and the folder `talker` of
`inclusionAI/Ming-flash-omni-2.0`): talker -> code2wav.

What its two stages must agree on and nothing else. Reference: the vendor's repository,
inclusionAI/Ming-omni-tts. The talker reads the text itself, so there is no thinker and no output of
text. It makes latents of floats instead of codes, a frame of four in each step; code2wav decodes
them to samples at 44.1 kHz. A voice is one that the model was trained on, one of the recordings in
the checkpoint, is cloned from a reference recording, or is described in words.

There are two layouts. Ming-omni-tts has one `config.json` and one set of weights. The talker of
Ming-flash-omni 2.0 is the folder `talker` of a larger checkpoint, or that folder by itself: the
language model's configuration and tokenizer are in `llm`, the audio networks in `vae`, and voices
in `data/voice_name.json`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.pipelines.edges import audio_edge, frames_edge, spoken_edge
from antiphon.pipelines.examples import conversation, random_floats
from antiphon.pipelines.files import CONFIG_FILE, read_config, read_json, reading
from antiphon.pipelines.graph import CheckpointFiles, Pipeline, StageSpec
from antiphon.values.options import Option, OptionKind
from antiphon.values.segment import ChunkPolicy

TALKER, CODE2WAV = "talker", "code2wav"
INPUT, LATENTS, AUDIO = "input", "speech_latents", "audio"

ARCHITECTURE = "BailingMMNativeForConditionalGeneration"
FLASH_ARCHITECTURE = "BailingMM2NativeForConditionalGeneration"
"""Ming-flash-omni 2.0. Only its folder `talker` is served."""
TALKER_FOLDER, VOICES_FILE = "talker", "data/voice_name.json"
LAYERS_FOLDER, AUDIO_FOLDER = "llm", "vae"
"""Folders of Ming-flash-omni's talker."""

SAMPLE_RATE_HZ = 44_100
"""Of reference recordings and of the audio that is made."""

MOST_REFERENCE_S = 30.0

LATENT_WIDTH = 64
STEP_LATENTS = 4
"""Latents that a step of the talker makes, 0.32 s."""
FRAME_WIDTH = STEP_LATENTS * LATENT_WIDTH
"""Floats of a frame: the latents of a step, one after the other."""
HISTORY_LATENTS = 32
"""Latents before a step that its flow sees."""

LATENT_ROWS = 4
"""Rows of the audio decoder for each latent."""
ROW_SAMPLES = 882
LATENT_SAMPLES = LATENT_ROWS * ROW_SAMPLES
FRAME_SAMPLES = STEP_LATENTS * LATENT_SAMPLES
FRAME_RATE_HZ = SAMPLE_RATE_HZ / FRAME_SAMPLES

SPEAKER_WIDTH = 192

OPTIONS = (
    Option(
        "instruction",
        OptionKind.TEXT,
        "The voice and how it speaks, in words: its sex, age, timbre, style.",
        instructs=True,
    ),
    Option(
        "reference_audio",
        OptionKind.AUDIO,
        "A recording of the voice to speak with.",
        sample_rate_hz=SAMPLE_RATE_HZ,
        max_s=MOST_REFERENCE_S,
    ),
    Option(
        "reference_text",
        OptionKind.TEXT,
        "What the recording says: clones more exactly.",
    ),
    Option("dialect", OptionKind.TEXT, "The dialect, in words, such as 广粤话 or 川渝话."),
    Option("emotion", OptionKind.TEXT, "The emotion, in words, such as 高兴, 愤怒 or 悲伤."),
    Option("pace", OptionKind.TEXT, "The speed, in words: 快速, 中速 or 慢速."),
    Option("pitch", OptionKind.TEXT, "The pitch, in words: 低, 中 or 高."),
    Option("volume", OptionKind.TEXT, "The volume, in words: 低, 中 or 高."),
)


TAIL_SILENCE = "tail_silence_s"
MOST_TAIL_S = 10.0

DECODER_OPTIONS = (
    Option(
        TAIL_SILENCE,
        OptionKind.NUMBER,
        "Silence at the end of speech is cut to so many seconds. Without it nothing is cut.",
        most=MOST_TAIL_S,
    ),
)

PIPELINE = Pipeline(
    name="ming_tts",
    architectures=(ARCHITECTURE, FLASH_ARCHITECTURE),
    # The folder `talker` by itself has no architecture of its own.
    marker=VOICES_FILE,
    files=(
        # Only the talker of Ming-flash-omni.
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
    # A frame lasts as long as several of other families, so none waits for another.
    chunk_policy=ChunkPolicy(first=1, ramp=(), steady=1),
    stages=(
        StageSpec(
            TALKER,
            samples=True,
            reads_aloud=True,
            options=OPTIONS,
            example=conversation(INPUT),
        ),
        # In float32 alone, as the reference's CPU path does.
        StageSpec(
            CODE2WAV, options=DECODER_OPTIONS, example=random_floats(LATENTS), dtype="float32"
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
"""The field of `config.json` that only the layout of Ming-flash-omni has."""


@dataclass(frozen=True, slots=True)
class MingCheckpoint:
    """A checkpoint. `folder` holds `config`, the content of its `config.json`, the talker's weights
    and `campplus.onnx`; `flash` selects the layout of Ming-flash-omni."""

    folder: Path
    config: dict[str, Any]
    flash: bool

    @classmethod
    def read(cls, model_dir: Path) -> MingCheckpoint:
        """The checkpoint in a directory, or in the folder `talker` within.

        Raises `FailedPrecondition` if its `config.json` cannot be read.
        """
        inner = model_dir / TALKER_FOLDER
        folder = inner if (inner / CONFIG_FILE).is_file() else model_dir
        config = read_config(folder)
        return cls(folder, config, FLOW_OF_FLASH in config)

    @property
    def config_file(self) -> Path:
        """The file of `config`."""
        return self.folder / CONFIG_FILE

    @property
    def text_folder(self) -> Path:
        """The folder of the tokenizer, and in Ming-flash-omni of the language model's
        configuration."""
        return self.folder / LAYERS_FOLDER if self.flash else self.folder

    @property
    def audio_folder(self) -> Path:
        """The folder of the weights of the audio networks."""
        return self.folder / AUDIO_FOLDER if self.flash else self.folder

    @property
    def audio_prefix(self) -> str:
        """The prefix of the names of audio tensors."""
        return "" if self.flash else "audio."

    @property
    def voices_file(self) -> Path:
        """The list of voices that are recordings."""
        return self.folder / VOICES_FILE

    def layers(self) -> dict[str, Any]:
        """The language model's configuration. Raises `FailedPrecondition`."""
        if self.flash:
            return read_config(self.text_folder)
        with reading(self.config_file):
            layers: dict[str, Any] = self.config["llm_config"]
        return layers

    def audio(self) -> dict[str, Any]:
        """The configuration of the audio networks. Raises `FailedPrecondition`."""
        if self.flash:
            return read_json(self.audio_folder / CONFIG_FILE)
        with reading(self.config_file):
            audio: dict[str, Any] = self.config["audio_tokenizer_config"]
        return audio
