"""Qwen3-TTS with the 12 Hz codec: talker -> code2wav.

This module defines what its two stages agree on. The reference is `qwen-tts` 0.1.1, the vendor's
package. The talker reads the text itself, so there is no thinker and no text output. A voice either
comes with the checkpoint or is cloned with a speaker vector, which is computed from a reference
recording. If the request also contains the recording's text, the recording's codec frames are used
as well, and they prime code2wav.
"""

from __future__ import annotations

from antiphon.pipelines.edges import audio_edge, conversation_edge, frames_edge
from antiphon.pipelines.examples import conversation, random_codes
from antiphon.pipelines.graph import TORCH_ONLY, CheckpointFiles, Pipeline, StageSpec
from antiphon.values.options import Option, OptionKind

TALKER, CODE2WAV = "talker", "code2wav"

CODEC_FOLDER = "speech_tokenizer"
"""The folder in a checkpoint that contains the codec. Code2wav uses its decoder, and the talker
uses its encoder.
"""

SAMPLE_RATE_HZ = 24_000
"""The sample rate of reference recordings and of generated audio."""

FRAME_RATE_HZ = 12.5

TEXT_MODES = WHOLE_TEXT, STREAMED_TEXT = "whole", "stream"
"""Whether all text precedes the first frame, or some text is added with each frame.

The two modes have different prompts and generate different codes.
"""

OPTIONS = (
    Option("language", OptionKind.TEXT, "The language of the text. Not specified by default."),
    Option("instruction", OptionKind.TEXT, "A description of how to speak.", instructs=True),
    Option(
        "text_mode",
        OptionKind.TEXT,
        "Whether the model reads the whole text before the first frame, or a part of it with each "
        "frame. The default depends on the type of the checkpoint.",
        choices=TEXT_MODES,
    ),
    Option(
        "reference_audio",
        OptionKind.AUDIO,
        "A recording of the voice to use.",
        sample_rate_hz=SAMPLE_RATE_HZ,
        max_s=60.0,
    ),
    Option(
        "reference_text",
        OptionKind.TEXT,
        "The transcript of the recording. It makes the voice more similar.",
    ),
)

PIPELINE = Pipeline(
    name="qwen3_tts",
    architectures=("Qwen3TTSForConditionalGeneration",),
    files=(CheckpointFiles(folders=("", CODEC_FOLDER)),),
    stages=(
        StageSpec(
            TALKER,
            engines=TORCH_ONLY,
            samples=True,
            reads_aloud=True,
            options=OPTIONS,
            example=conversation("input"),
        ),
        StageSpec(CODE2WAV, engines=TORCH_ONLY, example=random_codes("codes")),
    ),
    edges=(
        conversation_edge(TALKER),
        # The frames of a reference recording come first. They prime the consumer.
        frames_edge("codes", TALKER, CODE2WAV, rate_hz=FRAME_RATE_HZ, primed=True),
        audio_edge(CODE2WAV, frames="codes"),
    ),
)
