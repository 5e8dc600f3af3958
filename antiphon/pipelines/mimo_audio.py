"""MiMo-Audio (`XiaomiMiMo/MiMo-Audio-7B-Instruct`): talker -> code2wav.

This module defines only what its two stages must agree on. The reference is the vendor's
repository, XiaomiMiMo/MiMo-Audio. A single language model, the talker, reads text and speech. It
writes text and groups of codec frames. The text is sent to the client and the frames are sent to
code2wav.

A checkpoint consists of two directories. One contains the language model. The other contains the
audio tokenizer, whose encoder is used by the talker and whose decoder is used by code2wav. See
`AUDIO_REPOSITORY`.
"""

from __future__ import annotations

from dataclasses import replace

from antiphon.pipelines.edges import audio_edge, conversation_edge, frames_edge, text_edge
from antiphon.pipelines.examples import (
    ExampleSettings,
    MadeUp,
    conversation,
    random_codes,
)
from antiphon.pipelines.files import CONFIG_FILE
from antiphon.pipelines.graph import (
    TORCH_ONLY,
    TORCH_OR_VLLM,
    CheckpointFiles,
    Companion,
    Pipeline,
    StageSpec,
)
from antiphon.values.options import DIALOGUE, SPEECH, TASK, TRANSCRIPTION, Option, OptionKind
from antiphon.values.segment import ChunkPolicy

TALKER, CODE2WAV = "talker", "code2wav"
INPUT, TEXT, CODES, AUDIO = "input", "text", "codes", "audio"

AUDIO_TOKENIZER = "MiMo-Audio-Tokenizer"
"""The name of the directory in which the audio tokenizer is released."""
AUDIO_REPOSITORY = Companion(
    f"XiaomiMiMo/{AUDIO_TOKENIZER}", "audio_tokenizer_dir", AUDIO_TOKENIZER
)

SAMPLE_RATE_HZ = 24_000
"""The sample rate of recordings and of generated audio."""

GROUP_FRAMES = 4
"""The number of frames at each position of the language model."""
CODE_RATE_HZ = 25.0
CODEBOOKS = (1024, 1024, 128, 128, 128, 128, 128, 128)
"""The sizes of the codebooks. A frame has one code from each codebook."""

BLOCK_FRAMES = 20
"""The number of frames that are decoded at a time when streaming.

The model is trained to write five groups of speech in a row.
"""

MOST_REFERENCE_S = 60.0
YES = "yes"
SWITCH = "no", YES

OPTIONS = (
    Option(
        TASK,
        OptionKind.TEXT,
        "The output to generate: an answer to the messages, the last message read aloud, or the "
        "transcript of its recording. The default depends on the endpoint.",
        choices=(DIALOGUE, SPEECH, TRANSCRIPTION),
    ),
    Option(
        "instruction",
        OptionKind.TEXT,
        f"A description of how to speak. Only for the {TASK} {SPEECH}.",
        instructs=True,
    ),
    Option(
        "described",
        OptionKind.TEXT,
        f"Whether the text itself describes how to speak it. Only for the {TASK} {SPEECH}.",
        choices=SWITCH,
    ),
    Option(
        "thinking",
        OptionKind.TEXT,
        "Whether an answer begins with the model's reasoning. Only for answers in text.",
        choices=SWITCH,
    ),
    Option(
        "reference_audio",
        OptionKind.AUDIO,
        f"A recording of the voice to use. With the {TASK} {SPEECH}, it requires an instruction, "
        "or a text that describes how to speak it.",
        sample_rate_hz=SAMPLE_RATE_HZ,
        max_s=MOST_REFERENCE_S,
    ),
    Option(
        "code_temperature",
        OptionKind.NUMBER,
        "The sampling temperature for speech codes, which are sampled separately from the text. 0 "
        "selects the most likely code. Defaults to 0.9.",
        most=100.0,
    ),
    Option(
        "code_top_p",
        OptionKind.NUMBER,
        "The nucleus sampling threshold for speech codes: the cumulative probability of the most "
        "likely codes from which one is sampled. Defaults to 0.95.",
        least=1e-6,
        most=1.0,
    ),
)


def code2wav_example(settings: ExampleSettings) -> MadeUp:
    """Return random frames. Their codes are valid in every codebook."""
    told = type(settings.description)()
    told.CopyFrom(settings.description)
    told.code_entries = min(CODEBOOKS)
    return random_codes(CODES)(replace(settings, description=told))


PIPELINE = Pipeline(
    name="mimo_audio",
    architectures=("MiMoAudioModel", "MiMoAudioForCausalLM"),
    files=(
        CheckpointFiles(folders=("", AUDIO_TOKENIZER), marker=f"{AUDIO_TOKENIZER}/{CONFIG_FILE}"),
        CheckpointFiles(),
    ),
    companions=(AUDIO_REPOSITORY,),
    stages=(
        StageSpec(
            TALKER,
            engines=TORCH_OR_VLLM,
            samples=True,
            options=OPTIONS,
            example=conversation(INPUT),
        ),
        StageSpec(CODE2WAV, engines=TORCH_ONLY, example=code2wav_example),
    ),
    edges=(
        conversation_edge(TALKER),
        text_edge(TALKER),
        frames_edge(CODES, TALKER, CODE2WAV, rate_hz=CODE_RATE_HZ, groups=len(CODEBOOKS)),
        audio_edge(CODE2WAV, CODES),
    ),
    # An incomplete block doesn't produce any audio.
    chunk_policy=ChunkPolicy(first=BLOCK_FRAMES, ramp=(), steady=BLOCK_FRAMES),
)
