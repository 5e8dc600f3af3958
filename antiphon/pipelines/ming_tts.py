"""Ming TTS (`inclusionAI/Ming-omni-tts-0.5B`): talker -> code2wav.

What its two stages must agree on and nothing else. Reference: the vendor's repository,
inclusionAI/Ming-omni-tts. The talker reads the text itself, so there is no thinker and no output of
text. It makes latents of floats instead of codes, a frame of four in each step; code2wav decodes
them to samples at 44.1 kHz. A voice is one that the model was trained on, is cloned from a
reference recording, or is described in words.
"""

from __future__ import annotations

from antiphon.options import Option, OptionKind
from antiphon.pipelines.edges import audio_edge, conversation_edge, frames_edge
from antiphon.pipelines.examples import conversation, random_floats
from antiphon.pipelines.graph import Pipeline, StageSpec
from antiphon.segment import ChunkPolicy

TALKER, CODE2WAV = "talker", "code2wav"
INPUT, LATENTS, AUDIO = "input", "speech_latents", "audio"

ARCHITECTURE = "BailingMMNativeForConditionalGeneration"

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
    architectures=(ARCHITECTURE,),
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
        conversation_edge(TALKER),
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
